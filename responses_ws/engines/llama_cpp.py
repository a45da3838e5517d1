"""llama.cpp's server, asked in token ids."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from responses_ws.protocol.sampling import Delta, Finished, TokenDelta, Tokens
from responses_ws.protocol.usage import Usage

from .base import Capabilities, ChatRequest, Engine, EngineError, EngineModel, Health, TokenRequest
from .chat_stream import ChatStream
from .http import Body, HttpClient, StreamedAnswer, checked_url
from .llama_stream import CompletionReader, Gap
from .openai_chat import chat_body
from .options import Timeouts, read_options

MAX_SPELLINGS = 4096

T = TypeVar("T")

# All of them, since the server's own are opinions (top_k 40, min_p 0.05, temperature 0.8) that no response tells of.
NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}


class LlamaCppOptions(msgspec.Struct, rename="upper", forbid_unknown_fields=True, kw_only=True):
    """Options of `LlamaCpp`."""

    base_url: str
    """Without a version: ``http://127.0.0.1:8080``."""
    api_key: str = ""
    headers: dict[str, str] = {}
    """More headers for every call."""
    timeouts: Timeouts = Timeouts()
    sampling: dict[str, float] = {}
    """Samplers for requests that do not say, in llama.cpp's words: ``{"temperature": 0.7, "min_p": 0.05}``."""


class LlamaCpp(Engine):
    """A client of a llama.cpp server.

    Models with a ``RENDERER`` are asked through ``/completion``, ids in, ids out; others through its chat route, which
    does not enforce ``tool_choice``. The server keeps prompts apart by their ids only: what one organisation has sent
    may be cached for another.
    """

    capabilities = Capabilities(
        tokens=True,
        constraints=frozenset({"json_schema", "gbnf"}),
        tool_choice=False,
        logprobs=True,
        response_format=frozenset({"json_object", "json_schema"}),
    )

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        settings = read_options(name, options, LlamaCppOptions)
        self._use(
            HttpClient(
                checked_url(name, settings.base_url),
                api_key=settings.api_key,
                headers=settings.headers,
                connect_seconds=settings.timeouts.connect,
            ),
            settings.sampling,
            settings.timeouts.models,
        )

    def _use(self, client: HttpClient, sampling: Mapping[str, float], seconds: float) -> None:
        self._client = client
        self._sampling = {**NEUTRAL, **sampling}
        self._seconds = seconds
        """For everything but answers."""
        self._spellings: dict[str, list[int]] = {}

    def generate(self, request: TokenRequest) -> AbstractAsyncContextManager[AsyncIterator[list[TokenDelta]]]:
        return self._complete(request, request.max_tokens)

    async def prefill(self, request: TokenRequest) -> Usage | None:
        # It samples one token all the same, which nobody is told of.
        async with self._complete(request, 0) as answer:
            last = [delta async for deltas in answer for delta in deltas][-1]
        assert isinstance(last, Finished) and last.usage is not None, "the reader ends so"
        return msgspec.structs.replace(last.usage, output_tokens=0)

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[list[Delta]]]:
        body = chat_body(request, extra={"return_progress": True})
        headers = {"X-Request-Id": request.request_id}
        return StreamedAnswer(self._client, "/v1/chat/completions", body, ChatStream(), headers)

    async def rendered(self, request: ChatRequest) -> Sequence[int] | None:
        said = await self._client.ask("/apply-template", chat_body(request), seconds=self._seconds)
        content = {"content": _decoded(said, _Templated).prompt, "add_special": True, "parse_special": True}
        said = await self._client.ask("/tokenize", msgspec.json.encode(content), seconds=self._seconds)
        return _decoded(said, _Ids).tokens

    async def models(self) -> list[EngineModel]:
        listed = _decoded(await self._client.get("/v1/models", seconds=self._seconds), _Models)
        props = _decoded(await self._client.get("/props", seconds=self._seconds), _Props)
        # What it can read is that of a slot, not of the server.
        context_tokens = props.default_generation_settings.n_ctx
        return [EngineModel(id=one.id, context_tokens=context_tokens) for one in listed.data]

    async def health(self) -> Health:
        try:
            await self._client.get("/health", seconds=self._seconds)
        except EngineError as exc:
            return Health(ok=False, detail=exc.message)
        return Health(ok=True)

    async def aclose(self) -> None:
        await self._client.aclose()

    def _complete(self, request: TokenRequest, max_tokens: int | None) -> "_Completion":
        reader = CompletionReader(
            request.stop_ids, request.asked.top_logprobs, is_constrained=request.constraint is not None
        )
        headers = {"X-Request-Id": request.asked.request_id}
        return _Completion(self, "/completion", self._body(request, max_tokens), reader, headers)

    def _body(self, request: TokenRequest, max_tokens: int | None) -> Body:
        asked = request.asked
        wanted = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "frequency_penalty": asked.frequency_penalty,
            "presence_penalty": asked.presence_penalty,
        }
        fields: dict[str, Any] = {
            **self._sampling,
            **{name: value for name, value in wanted.items() if value is not None},
            "n_predict": -1 if max_tokens is None else max_tokens,
            "stream": True,
            "return_tokens": True,
            # Without it the server does not see before the end of the prompt that its caller has left.
            "return_progress": True,
            "cache_prompt": True,
            # Any: it finds the slot whose cache fits best. A slot that we name may be busy while others idle.
            "id_slot": -1,
            "stop": [],
        }
        if asked.top_logprobs is not None:
            fields["n_probs"] = max(asked.top_logprobs, 1)
        if request.constraint is not None:
            fields["grammar" if request.constraint.kind == "gbnf" else "json_schema"] = request.constraint.value
        return (b'{"prompt":[', request.prompt.json(), b"],", msgspec.json.encode(fields)[1:])

    async def spelling(self, text: str) -> list[int]:
        """The tokens of a text of which the server told only the last, most likely as they were sampled."""
        ids = self._spellings.get(text)
        if ids is None:
            content = {"content": text, "add_special": False, "parse_special": False, "with_pieces": True}
            body = await self._client.ask("/tokenize", msgspec.json.encode(content), seconds=self._seconds)
            pieces = _decoded(body, _Tokenized).tokens
            # Some tokenizers put a space in front.
            while len(pieces) > 1 and b"".join(one.spelled for one in pieces[1:]).endswith(text.encode()):
                del pieces[0]
            ids = [one.id for one in pieces]
            if len(self._spellings) >= MAX_SPELLINGS:
                self._spellings.clear()
            self._spellings[text] = ids
        return ids


class _Completion(StreamedAnswer[TokenDelta]):
    """An answer whose gaps are filled."""

    def __init__(self, engine: LlamaCpp, *call: Any) -> None:
        super().__init__(engine._client, *call)
        self._engine = engine

    async def __anext__(self) -> list[TokenDelta]:
        return [await self._filled(delta) if isinstance(delta, Gap) else delta for delta in await super().__anext__()]

    async def _filled(self, gap: Gap) -> Tokens:
        ids = await self._engine.spelling(gap.text)
        unknown = {"token": "", "bytes": [], "logprob": 0.0, "top_logprobs": []}
        return Tokens(ids, (unknown,) * (len(ids) - 1) + gap.logprobs if gap.logprobs else ())


class _Listed(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Listed]


class _Settings(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings = _Settings()


class _Templated(msgspec.Struct):
    prompt: str


class _Ids(msgspec.Struct):
    tokens: list[int]


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int] = ""

    @property
    def spelled(self) -> bytes:
        return self.piece.encode() if isinstance(self.piece, str) else bytes(self.piece)


class _Tokenized(msgspec.Struct):
    tokens: list[_Piece]


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise EngineError("protocol", f"the engine's answer cannot be read: {exc}") from exc
