"""What a turn does not ask again: the model's configuration, its limits, its renderer, its prices, its rights."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from responses_ws.engines.registry import registry
from responses_ws.models import ApiKey, Price
from responses_ws.runtime import background, dbpool
from responses_ws.testing import ResponsesCommunicator

from .bytes_model import BytesEngine, BytesRenderer

TURNS = 15
"""All of them within the half minute that a key is believed, on a busy machine too."""

_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_hook)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The paths that are opened in the block, by whichever thread."""
    global _opened
    _opened = opened = []
    try:
        yield opened
    finally:
        _opened = None


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements of every connection that is opened from now on, in whichever thread."""
    said: list[str] = []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        said.append(sql)
        return execute(sql, *arguments)

    def watch(connection: Any, **_kwargs: Any) -> None:
        connection.execute_wrappers.append(note)

    connection_created.connect(watch)
    yield said
    connection_created.disconnect(watch)


class Counted(BytesRenderer):
    made = 0

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Counted":
        cls.made += 1
        return cls()


class Asked(BytesEngine):
    lists = 0

    async def models(self) -> list[Any]:
        self.lists += 1
        return await super().models()


async def test_no_turn_of_a_chain_reads_what_the_process_holds(
    settings: Any, api_key: ApiKey, statements: list[str]
) -> None:
    renderer = {"CLASS": f"{__name__}.Counted"}
    settings.RESPONSES_WS = {"MODELS": {"bytes": {"ENGINE": "bytes", "RENDERER": renderer}, "b": {"ALIAS": "bytes"}}}
    engine = Asked(*["So.<end>"] * TURNS)
    registry.install("bytes", engine)
    await dbpool.run(lambda: Price.objects.create(model="bytes", component="input", nano_per_million=1))
    by_turn: list[list[str]] = []
    files: list[list[str]] = []
    async with ResponsesCommunicator(api_key.secret) as socket:
        previous = None
        for number in range(TURNS):
            statements.clear()
            with opened_files() as opened:
                events = await socket.turn(
                    model="b", store=False, input=f"Number {number}", previous_response_id=previous
                )
                await background.settle()
            assert events[-1]["type"] == "response.completed"
            previous = events[-1]["response"]["id"]
            by_turn.append(list(statements))
            files.append(opened)

    # It opens a usage record and closes it. It reads nothing, whatever the length of the chain.
    for turn in by_turn[1:]:
        assert [sql.split()[0] for sql in turn if sql.startswith(("SELECT", "INSERT"))] == ["INSERT"]
        assert {name for sql in turn for name in re.findall(r'"(responses_ws_\w+)"', sql)} == {
            "responses_ws_usagerecord"
        }
    assert [path for turn in files[1:] for path in turn] == []
    assert (Counted.made, engine.lists) == (1, 1)
