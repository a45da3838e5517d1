"""vLLM, asked in token ids: ``/inference/v1/generate``, or ``/v1/completions`` of older and other servers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Literal

import msgspec

from responses_ws.protocol.sampling import Constraint, ConstraintKind, Finished, TokenDelta
from responses_ws.protocol.usage import Usage

from .base import ChatRequest, EngineError, Health, TokenRequest
from .http import BegunAnswer, Body, StreamedAnswer, begun
from .openai_chat import OpenAIChat, OpenAIChatOptions, chat_body
from .vllm_stream import VllmStream

logger = logging.getLogger(__name__)

SECONDS_UNTIL_RECHECK = 300.0
"""After `/inference/v1/generate` was not there: it may be after a restart with other flags."""
# Of the id that a call of that route is given, by which alone it can be aborted.
ID_PREFIX = "generate-tokens-"

_CONSTRAINTS: dict[ConstraintKind, str] = {
    "json_schema": "json",
    "structural_tag": "structural_tag",
    "regex": "regex",
    "gbnf": "grammar",
}
_REFUSED = frozenset({403, 404, 405})


class VllmOptions(OpenAIChatOptions, kw_only=True):
    """Options of `Vllm`: those of `OpenAIChat`, and more."""

    isolation_field: Literal["", "cache_salt", "extra_key"] = "cache_salt"
    sampling: dict[str, Any] = {}
    """Sampling parameters for what a request in token ids does not say: ``{"temperature": 0.6, "top_k": 20}``. What
    the model recommends in its ``generation_config.json`` vLLM takes for its own chat route only."""


class Vllm(OpenAIChat):
    """A client of vLLM: models with a renderer are asked in token ids, the others in messages, as `OpenAIChat` does.

    Which of the two routes for token ids the server has is found out by the first call. Calls of one organisation
    share its prefix cache, others do not (``cache_salt``).

    Source: vLLM 0.32, ``entrypoints/scale_out/token_in_token_out``.
    """

    options_type = VllmOptions
    _settings: VllmOptions

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self.capabilities = msgspec.structs.replace(self.capabilities, tokens=True, constraints=frozenset(_CONSTRAINTS))
        self.root = self._client.base_url.removesuffix("/v1")
        self._numbers = count(1)
        self._generate_is_back_at = 0.0
        """When `/inference/v1/generate` is tried again."""

    def generate(self, request: TokenRequest) -> AbstractAsyncContextManager[AsyncIterator[list[TokenDelta]]]:
        # A response may take several calls.
        call_id = f"{request.asked.request_id}-{next(self._numbers)}"
        return BegunAnswer(lambda: self._begin(request, call_id), lambda: self._abort(call_id))

    async def prefill(self, request: TokenRequest) -> Usage | None:
        # No token at all is refused; one costs nothing beside the prompt.
        request = msgspec.structs.replace(request, max_tokens=1, constraint=None)
        usage: Usage | None = None
        async with self.generate(request) as batches:
            async for batch in batches:
                if isinstance(batch[-1], Finished):
                    usage = batch[-1].usage
        return usage and msgspec.structs.replace(usage, output_tokens=0)

    async def rendered(self, request: ChatRequest) -> Sequence[int] | None:
        body = chat_body(request, extra=self.more_fields(request))
        seconds = self._settings.timeouts.models
        try:
            said = await self._client.ask("/chat/completions/render", body, seconds=seconds)
        except EngineError as exc:
            if exc.status in _REFUSED:
                return None
            raise
        try:
            return msgspec.json.decode(said, type=_Rendered).token_ids
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise EngineError("protocol", f"the engine's rendering cannot be read: {exc}") from exc

    async def health(self) -> Health:
        try:
            await self._client.get(f"{self.root}/health", seconds=self._settings.timeouts.models)
        except EngineError as exc:
            return Health(ok=False, detail=exc.message)
        return Health(ok=True)

    async def _begin(self, request: TokenRequest, call_id: str) -> tuple[StreamedAnswer[TokenDelta], list[TokenDelta]]:
        """By whichever route the server has. Raises EngineError."""
        headers = {"X-Request-Id": call_id}
        if request.asked.affinity:
            headers["X-Session-ID"] = request.asked.affinity

        def answer(path: str, body: Body) -> StreamedAnswer[TokenDelta]:
            return StreamedAnswer(self._client, path, body, VllmStream(request.asked.top_logprobs or 0), headers)

        is_remembered = not self._has_generate
        if not is_remembered:
            try:
                return await begun(answer(f"{self.root}/inference/v1/generate", self._generate_body(request)))
            except EngineError as exc:
                if exc.status not in _REFUSED:
                    raise
        begun_answer = await begun(answer("/completions", self._completions_body(request)))
        if not is_remembered:
            # Not before: a model that is not served is a 404 on either route.
            self._generate_is_back_at = asyncio.get_running_loop().time() + SECONDS_UNTIL_RECHECK
            logger.warning("engine %s: no /inference/v1/generate there; vLLM has it with --enable-scale-out", self.name)
        return begun_answer

    def _abort(self, call_id: str) -> None:
        """Closing its connection has freed vLLM, unless a proxy in between reads on."""
        if self._has_generate:
            body = msgspec.json.encode({"request_ids": [ID_PREFIX + call_id]})
            self._client.tell(f"{self.root}/inference/v1/abort_requests", body)

    @property
    def _has_generate(self) -> bool:
        return asyncio.get_running_loop().time() >= self._generate_is_back_at

    def _generate_body(self, request: TokenRequest) -> Body:
        asked = request.asked
        fields: dict[str, Any] = {
            "model": asked.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "sampling_params": _sampling(request, self._settings.sampling),
            **self.more_fields(asked),
        }
        if request.constraint is not None:
            # From the first token on, whatever --reasoning-parser would make of the prompt.
            fields["reasoning_ended"] = True
        if asked.top_logprobs is not None:
            # Only with the text are their tokens told as such.
            fields["output_mode"] = "text"
        return (b'{"token_ids":[', request.prompt.json(), b"],", msgspec.json.encode(fields)[1:])

    def _completions_body(self, request: TokenRequest) -> Body:
        asked = request.asked
        fields: dict[str, Any] = {
            "model": asked.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            # Left out, it is 16 on this route.
            "max_tokens": None,
            **_sampling(request, self._settings.sampling),
            **self.more_fields(asked),
        }
        return (b'{"prompt":[', request.prompt.json(), b"],", msgspec.json.encode(fields)[1:])


class _Rendered(msgspec.Struct):
    token_ids: list[int]


def _sampling(request: TokenRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    asked = request.asked
    said = {
        "max_tokens": request.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "stop_token_ids": request.stop_ids or None,
        "logprobs": asked.top_logprobs,
        "structured_outputs": None if request.constraint is None else _structured(request.constraint),
    }
    return {**defaults, **{key: value for key, value in said.items() if value is not None}}


def _structured(constraint: Constraint) -> dict[str, Any]:
    value = constraint.value
    if constraint.kind == "structural_tag" and not isinstance(value, str):
        value = msgspec.json.encode(value).decode()
    return {_CONSTRAINTS[constraint.kind]: value}
