"""SGLang, asked in token ids: ``/generate``."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Literal

import msgspec

from responses_ws.protocol.sampling import Constraint, ConstraintKind, Finished, Started, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage

from .base import EngineError, Health, TokenRequest
from .http import BegunAnswer, StreamedAnswer, begun
from .openai_chat import OpenAIChat, OpenAIChatOptions
from .sglang_sessions import Session, Sessions
from .sglang_stream import SGLangStream

_CONSTRAINTS: dict[ConstraintKind, str] = {
    "json_schema": "json_schema",
    "structural_tag": "structural_tag",
    "regex": "regex",
    "gbnf": "ebnf",
}


class SGLangOptions(OpenAIChatOptions, kw_only=True):
    """Options of `SGLang`: those of `OpenAIChat`, and more."""

    isolation_field: Literal["", "cache_salt", "extra_key"] = "extra_key"
    sampling: dict[str, Any] = {}
    """Sampling parameters for what a request in token ids does not say: ``{"temperature": 0.6, "top_k": 20}``."""
    sessions: int = 0
    """Keep so many chains in streaming sessions, which are told new ids only. Each pins its part of the server's
    memory. The server has to be started with ``--enable-streaming-session``. 0: none, its prefix cache does it."""


class SGLang(OpenAIChat):
    """A client of SGLang: models with a renderer are asked in token ids, the others in messages, as `OpenAIChat` does.

    Calls of one organisation share its prefix cache, others do not (``extra_key``).

    Source: SGLang 0.5.23, ``srt/managers/io_struct.py`` and ``srt/entrypoints/http_server.py``; never tried on one.
    """

    options_type = SGLangOptions
    _settings: SGLangOptions

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self.capabilities = msgspec.structs.replace(self.capabilities, tokens=True, constraints=frozenset(_CONSTRAINTS))
        self.root = self._client.base_url.removesuffix("/v1")
        self.sessions = Sessions(self._client, self.root, self._settings.sessions)
        self._numbers = count(1)

    def generate(self, request: TokenRequest) -> AbstractAsyncContextManager[AsyncIterator[list[TokenDelta]]]:
        if self._settings.sessions and request.asked.affinity:
            return _SessionCall(self, request)
        return self._whole(request)

    async def prefill(self, request: TokenRequest) -> Usage | None:
        # One token costs nothing beside the prompt, and is answered like any other call.
        asked = msgspec.structs.replace(request.asked, max_output_tokens=1)
        request = msgspec.structs.replace(request, asked=asked, max_tokens=1, constraint=None)
        usage: Usage | None = None
        async with self._whole(request) as batches:
            async for batch in batches:
                if isinstance(batch[-1], Finished):
                    usage = batch[-1].usage
        return usage and msgspec.structs.replace(usage, output_tokens=0)

    async def health(self) -> Health:
        try:
            await self._client.get(f"{self.root}/health", seconds=self._settings.timeouts.models)
        except EngineError as exc:
            return Health(ok=False, detail=exc.message)
        return Health(ok=True)

    async def aclose(self) -> None:
        self.sessions.close()
        await super().aclose()

    def new_id(self, request: TokenRequest) -> str:
        """Of one call: a response may take several. SGLang aborts all whose ids begin with one: hence the mark."""
        return f"{request.asked.request_id}-{next(self._numbers)}."

    def answer(self, request: TokenRequest, call_id: str, session: Session | None = None) -> StreamedAnswer[TokenDelta]:
        """The call to make; within a ``session``, with the ids that it does not hold."""
        asked = request.asked
        fields: dict[str, Any] = {
            "rid": call_id,
            "stream": True,
            "sampling_params": self._sampling(request),
            **self.more_fields(asked),
        }
        if asked.affinity:
            fields["routing_key"] = asked.affinity
        if asked.top_logprobs is not None:
            fields |= {"return_logprob": True, "top_logprobs_num": asked.top_logprobs, "return_text_in_logprobs": True}
        if session is None:
            ids: bytes | memoryview = request.prompt.json()
        else:
            fields["session_params"] = {"id": session.id}
            ids = msgspec.json.encode(request.prompt.since(len(session)).tolist())[1:-1]
        body = (b'{"input_ids":[', ids, b"],", msgspec.json.encode(fields)[1:])
        return StreamedAnswer(self._client, f"{self.root}/generate", body, SGLangStream(asked.top_logprobs))

    def abort(self, call_id: str) -> None:
        """Without it SGLang would notice two seconds after the connection was closed."""
        self._client.tell(f"{self.root}/abort_request", msgspec.json.encode({"rid": call_id}))

    def _whole(self, request: TokenRequest) -> BegunAnswer[TokenDelta]:
        call_id = self.new_id(request)
        return BegunAnswer(lambda: begun(self.answer(request, call_id)), lambda: self.abort(call_id))

    def _sampling(self, request: TokenRequest) -> dict[str, Any]:
        asked = request.asked
        said = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "frequency_penalty": asked.frequency_penalty,
            "presence_penalty": asked.presence_penalty,
            "stop_token_ids": request.stop_ids or None,
            **({} if request.constraint is None else _held_to(request.constraint)),
        }
        return {
            **self._settings.sampling,
            **{key: value for key, value in said.items() if value is not None},
            # Left out, it is 128; null is what is left of the context. That SGLang knows better than we: where it
            # keeps some back, one token too many is refused.
            "max_new_tokens": request.max_tokens if request.max_tokens == asked.max_output_tokens else None,
        }


class _SessionCall(BegunAnswer[TokenDelta]):
    """A call in its chain's session, where there is one; otherwise with the whole prompt."""

    def __init__(self, engine: SGLang, request: TokenRequest) -> None:
        super().__init__(self._begun, lambda: engine.abort(self._id))
        self._engine = engine
        self._request = request
        self._id = engine.new_id(request)
        self._session: Session | None = None
        self._sampled: list[int] = []
        self._has_finished = False

    async def __anext__(self) -> list[TokenDelta]:
        batch = await super().__anext__()
        for delta in batch:
            if isinstance(delta, Tokens):
                self._sampled += delta.ids
            elif isinstance(delta, Finished):
                self._has_finished = True
        return batch

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        self._give_back()

    async def _begun(self) -> tuple[StreamedAnswer[TokenDelta], list[TokenDelta]]:
        engine, request = self._engine, self._request
        key = (request.asked.isolation, request.asked.affinity)
        self._session = await engine.sessions.take(key, request.prompt)
        if self._session is not None:
            try:
                answer, first = await begun(engine.answer(request, self._id, self._session))
                if any(isinstance(one, Started) and one.prompt_tokens == len(request.prompt) for one in first):
                    return answer, first
                await answer.__aexit__()
                engine.abort(self._id)
            except EngineError as exc:
                if exc.kind != "bad_request":
                    self._give_back()
                    raise
            except BaseException:
                self._give_back()
                raise
            # Closed by the server meanwhile, still busy with a request that was left, or not what we took it for.
            engine.sessions.drop(self._session)
            self._session = None
            self._id = engine.new_id(request)
        return await begun(engine.answer(request, self._id))

    def _give_back(self) -> None:
        if self._session is None:
            return
        held = (self._request.prompt, self._sampled) if self._has_finished else None
        self._engine.sessions.give_back(self._session, held)
        self._session = None


def _held_to(constraint: Constraint) -> dict[str, str]:
    value = constraint.value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {_CONSTRAINTS[constraint.kind]: text}
