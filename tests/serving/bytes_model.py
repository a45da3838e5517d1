"""A model whose tokens are bytes, with a renderer and an engine for it: every id of a turn can be read off."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from responses_ws.engines.base import Capabilities, Engine, EngineModel, TokenRequest
from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.sampling import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    TokenDelta,
    Tokens,
)
from responses_ws.protocol.usage import Usage
from responses_ws.rendering.base import Ask, Draft, Opening, OutputParser, Renderer
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog

ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
END, CALL = 300, 301


def spelled(ids: Sequence[int]) -> str:
    """Ids as one can read them."""
    marks = {number: f"<{role}>" for role, number in ROLES.items()} | {END: "<end>", CALL: "<call>"}
    return "".join(marks.get(one) or chr(one) for one in ids)


def ids_of(text: str) -> list[int]:
    """What `spelled` made of them."""
    for mark, number in [("<end>", END), ("<call>", CALL)]:
        text = text.replace(mark, chr(number))
    return [ord(character) for character in text]


class BytesDraft(Draft):
    def __init__(self, prompt: ChatPrompt, ask: Ask) -> None:
        self._prompt = prompt
        fingerprint = prompt.instructions + (ask.tools or b"")
        past = prompt.tokens
        fits = past is not None and past.fingerprint == fingerprint
        self._past = past if fits and past is not None else TokenLog(fingerprint)
        self.path = "append" if fits else "full"
        self.kept_tokens = len(self._past)
        self._new = prompt.log.since(self._past.messages)
        self.size = sum(map(len, self._new))

    def make(self) -> None:
        if not len(self._prompt.log):
            raise InvalidRequest("There is no message.", param="input")
        self._ids: list[int] = []
        if len(self._past) and self._past.since(len(self._past) - 1)[0] != END:
            self._ids.append(END)
        front = msgspec.json.decode(b"[" + self._prompt.instructions + b"]") if self.path == "full" else []
        for message in [*front, *map(msgspec.json.decode, self._new)]:
            calls = [
                f"<call>{call['function']['name']}:{call['function']['arguments']}"
                for call in message.get("tool_calls") or []
            ]
            self._ids += [ROLES[message["role"]], *ids_of((message["content"] or "") + "".join(calls)), END]

    def log(self) -> TokenLog:
        log = self._past.extended(self._ids, "rendered", messages=len(self._prompt.log))
        return log.extended([ROLES["assistant"]], "opening", messages=len(self._prompt.log))


class BytesParser(OutputParser):
    """Text up to END; behind CALL the name of a tool, a colon and its arguments."""

    def __init__(self) -> None:
        self._call: list[int] | None = None

    def feed(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()) -> list[Delta]:
        deltas: list[Delta] = []
        for one in ids:
            if one == CALL:
                deltas += self._ended()
                self._call = []
            elif self._call is not None and one != END:
                self._call.append(one)
            elif one != END:
                deltas.append(TextDelta(chr(one)))
        return deltas

    def finish(self, reason: FinishReason) -> list[Delta]:
        return self._ended()

    def _ended(self) -> list[Delta]:
        if self._call is None:
            return []
        name, colon, arguments = spelled(self._call).partition(":")
        index, self._call = self.calls, None
        if not colon:
            self.malformed_calls += 1
            return [TextDelta(f"<call>{name}")]
        self.calls += 1
        return [CallStart(index, name), CallArguments(index, arguments), CallEnd(index)]


class BytesRenderer(Renderer):
    stop_ids = (END,)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "BytesRenderer":
        return cls()

    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        return BytesDraft(prompt, ask)

    def opening(self, ask: Ask) -> Opening:
        if isinstance(ask.tool_choice, dict):
            return Opening((CALL, *ids_of(ask.tool_choice["function"]["name"] + ":")), closing=(END,))
        return Opening()

    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        parser = BytesParser()
        tail = log.since(0)
        if CALL in tail[-64:] and tail[-1] == ord(":"):
            parser.feed(tail[len(tail) - 1 - tail[::-1].index(CALL) :])
        return parser


class BytesEngine(Engine):
    """Says its answers in order, a few ids at a time. ``prompts`` are the ids that it has been sent."""

    capabilities = Capabilities(tokens=True, chat=False)

    def __init__(self, *answers: str, pause: asyncio.Event | None = None) -> None:
        super().__init__("bytes", {})
        self.answers = list(answers)
        self.prompts: list[array[int]] = []
        self.requests: list[TokenRequest] = []
        self.pause = pause
        """Waited for before the second batch."""
        self.untold = 0
        """How many tokens more than it tells of it says to have made."""

    def renderer_options(self, model: str) -> dict[str, Any]:
        return {"CLASS": "tests.serving.bytes_model.BytesRenderer"}

    async def models(self) -> list[EngineModel]:
        return [EngineModel(id="bytes")]

    @asynccontextmanager
    async def generate(self, request: TokenRequest) -> AsyncIterator[AsyncIterator[list[TokenDelta]]]:
        self.requests.append(request)
        self.prompts.append(request.prompt.since(0))
        assert request.prompt.json() == b",".join(b"%d" % one for one in self.prompts[-1])
        yield self._answer(ids_of(self.answers.pop(0)), len(request.prompt))

    async def prefill(self, request: TokenRequest) -> Usage:
        self.prompts.append(request.prompt.since(0))
        return Usage(input_tokens=len(request.prompt), cached_tokens=1)

    async def _answer(self, ids: list[int], length: int) -> AsyncIterator[list[TokenDelta]]:
        yield [Started(length, min(7, length))]
        for start in range(0, len(ids), 3):
            if start and self.pause is not None:
                await self.pause.wait()
            yield [Tokens(ids[start : start + 3])]
        usage = Usage(input_tokens=length, output_tokens=len(ids) + self.untold, cached_tokens=min(7, length))
        yield [Finished("stop" if END in ids else "length", usage)]
