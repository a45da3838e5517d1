"""The demo project for benchmarks, which writes nothing down: no usage record, no response, no word to the billing."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from project.asgi import application
from responses_ws.runtime.dispatcher import dispatcher
from responses_ws.runtime.writer import GroupWriter

__all__ = ["application"]


def _written(_writer: GroupWriter, _write: Callable[[], Any], **_options: Any) -> "Future[Any]":
    done: Future[Any] = Future()
    done.set_result(None)
    return done


GroupWriter.submit = _written  # type: ignore[method-assign]
dispatcher.kick = lambda *_args, **_options: None  # type: ignore[method-assign]
