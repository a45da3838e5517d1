"""What engines promise that take token ids and give token ids."""

import asyncio
import contextlib
import unittest
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from responses_ws.engines.base import ChatRequest, Engine, EngineError, TokenRequest
from responses_ws.protocol.sampling import Finished, Progress, Started, TokenDelta, Tokens
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog

T = TypeVar("T")


def token_request(ids: Iterable[int], *, model: str, **fields: Any) -> TokenRequest:
    """A request whose prompt is ``ids``. Fields of `ChatRequest` are taken too; ``prompt`` may be a whole log."""
    prompt = fields.pop("prompt", None) or TokenLog().extended(list(ids), "rendered", messages=1)
    own = {field.name for field in msgspec.structs.fields(TokenRequest)}
    asked = {name: fields.pop(name) for name in list(fields) if name not in own}
    asked = {"request_id": "resp_test", "max_output_tokens": fields.get("max_tokens"), **asked}
    return TokenRequest(asked=ChatRequest(model=model, prompt=ChatPrompt(), **asked), prompt=prompt, **fields)


async def collect_tokens(engine: Engine, request: TokenRequest) -> list[TokenDelta]:
    """All deltas of one call."""
    async with engine.generate(request) as answer:
        return [delta async for deltas in answer for delta in deltas]


def ids_in(deltas: Sequence[TokenDelta]) -> list[int]:
    """What was sampled."""
    return [one for delta in deltas if isinstance(delta, Tokens) for one in delta.ids]


class TokenContract:
    """What every engine with the capability ``tokens`` promises; `EngineContract` is for those asked in messages.

    Give ``engine()``, ``model`` and ``prompt``, and the requests below as far as your engine can be brought to them;
    what returns None is skipped. Never asserts what a model says.
    """

    model: str
    prompt: Sequence[int]
    """Ids that the model can read: at least 64, so that a cache has something to keep."""
    seconds_to_answer = 30.0

    def engine(self) -> AbstractAsyncContextManager[Engine]:
        """A fresh engine, closed at the end of the block."""
        raise NotImplementedError

    def brief(self, prompt: TokenLog | None = None, **fields: Any) -> TokenRequest:
        """Is answered with at most a few tokens."""
        fields = {"max_tokens": 8, **fields}
        return token_request(self.prompt, model=self.model, prompt=prompt, **fields)

    def endless(self) -> TokenRequest | None:
        """Is answered at a length that outlasts the test."""
        return None

    def limited(self) -> TokenRequest | None:
        """Asks for more than its ``max_tokens``."""
        return None

    def stopped(self) -> TokenRequest | None:
        """Is answered with one of its ``stop_ids`` at the end."""
        return None

    def overlong(self) -> TokenRequest | None:
        """Has a prompt that does not fit into the model's context."""
        return None

    def refused(self) -> TokenRequest | None:
        """Is refused before it is accepted."""
        return None

    def broken(self) -> TokenRequest | None:
        """Is accepted, and breaks midway."""
        return None

    async def wait_until_free(self, engine: Engine) -> None:
        """Returns when the engine itself knows that a call was left. The default trusts it."""

    async def test_an_answer_in_tokens_ends_with_its_only_finished(self) -> None:
        async with self._running() as engine:
            deltas = await collect_tokens(engine, self.brief())

        assert isinstance(deltas[-1], Finished)
        assert [type(delta) for delta in deltas].count(Finished) == 1

    async def test_started_comes_first_progress_grows_and_no_step_is_empty(self) -> None:
        async with self._running() as engine:
            async with engine.generate(self.brief()) as answer:
                steps = [deltas async for deltas in answer]

        assert all(steps)
        deltas = sum(steps, [])
        assert [index for index, delta in enumerate(deltas) if isinstance(delta, Started)] in ([], [0])
        done = [delta.done for delta in deltas if isinstance(delta, Progress)]
        assert done == sorted(done)
        assert not any(isinstance(delta, Progress) for delta in _since(deltas, Tokens))

    async def test_every_token_is_counted(self) -> None:
        request = self.brief()

        async with self._running() as engine:
            deltas = await collect_tokens(engine, request)

        usage = _finished(deltas).usage
        assert usage is not None
        assert usage == usage.clamped()
        assert usage.input_tokens == len(request.prompt)
        assert usage.output_tokens == len(ids_in(deltas))
        assert usage.reasoning_tokens == 0, "what is reasoning, the parser knows"

    async def test_a_prompt_that_goes_on_from_an_answer_is_found_in_the_cache(self) -> None:
        first = self.brief()

        async with self._running() as engine:
            said = ids_in(await collect_tokens(engine, first))
            log = first.prompt.extended(said, "sampled", messages=2).extended(self.prompt[:8], "rendered", messages=3)
            deltas = await collect_tokens(engine, self.brief(log))

        usage = _finished(deltas).usage
        assert usage is not None
        assert usage.input_tokens == len(log)
        assert len(first.prompt) // 2 <= usage.cached_tokens < len(log)

    async def test_a_prefill_says_nothing_and_is_found_in_the_cache(self) -> None:
        async with self._running() as engine:
            usage = await engine.prefill(self.brief())
            deltas = await collect_tokens(engine, self.brief())

        if usage is None:
            raise unittest.SkipTest("this engine does not warm up")
        after = _finished(deltas).usage
        assert (usage.input_tokens, usage.output_tokens) == (len(self.prompt), 0)
        assert after is not None and after.cached_tokens >= len(self.prompt) // 2

    async def test_answers_in_tokens_do_not_mix(self) -> None:
        async with self._running() as engine:
            answers = await asyncio.gather(*(collect_tokens(engine, self.brief()) for _ in range(4)))

        assert [[type(delta) for delta in deltas].count(Finished) for deltas in answers] == [1, 1, 1, 1]

    async def test_no_token_comes_behind_the_limit(self) -> None:
        request = _or_skip(self.limited())

        async with self._running() as engine:
            deltas = await collect_tokens(engine, request)

        assert _finished(deltas).reason == "length"
        assert len(ids_in(deltas)) == request.max_tokens

    async def test_the_token_that_ends_an_answer_is_told(self) -> None:
        request = _or_skip(self.stopped())

        async with self._running() as engine:
            deltas = await collect_tokens(engine, request)

        *said, last = ids_in(deltas)
        assert _finished(deltas).reason == "stop"
        assert last in request.stop_ids
        assert not set(said) & set(request.stop_ids)

    async def test_leaving_the_block_frees_the_token_engine(self) -> None:
        request = _or_skip(self.endless())

        async with self._running() as engine:
            async with engine.generate(request) as answer:
                await _first_tokens(answer)
            await self.wait_until_free(engine)
            deltas = await collect_tokens(engine, self.brief())

        assert isinstance(deltas[-1], Finished)

    async def test_cancelling_frees_the_token_engine(self) -> None:
        request = _or_skip(self.endless())
        first = asyncio.Event()

        async def listen(engine: Engine) -> None:
            async with engine.generate(request) as answer:
                await _first_tokens(answer)
                first.set()
                async for _ in answer:
                    pass

        async with self._running() as engine:
            task = asyncio.create_task(listen(engine))
            await first.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.wait_until_free(engine)
            deltas = await collect_tokens(engine, self.brief())

        assert task.cancelled()
        assert isinstance(deltas[-1], Finished)

    async def test_an_overlong_prompt_is_said_to_be_that(self) -> None:
        async with self._running() as engine:
            refusal = await _refusal(engine, _or_skip(self.overlong()))

        assert refusal.kind == "context_length"

    async def test_a_refusal_raises_before_anything_is_accepted(self) -> None:
        async with self._running() as engine:
            await _refusal(engine, _or_skip(self.refused()))

    async def test_a_break_raises_after_the_tokens_that_came(self) -> None:
        request = _or_skip(self.broken())
        deltas: list[TokenDelta] = []
        error: EngineError | None = None

        async with self._running() as engine:
            async with engine.generate(request) as answer:
                try:
                    async for some in answer:
                        deltas += some
                except EngineError as exc:
                    error = exc

        assert error is not None
        assert ids_in(deltas)
        assert not any(isinstance(delta, Finished) for delta in deltas)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[Engine]:
        async with asyncio.timeout(self.seconds_to_answer), self.engine() as engine:
            yield engine


async def _first_tokens(answer: AsyncIterator[list[TokenDelta]]) -> None:
    async for deltas in answer:
        if ids_in(deltas):
            return


async def _refusal(engine: Engine, request: TokenRequest) -> EngineError:
    """How it is refused on entering."""
    try:
        async with engine.generate(request):
            pass
    except EngineError as exc:
        return exc
    raise AssertionError("it was accepted")


def _finished(deltas: Sequence[TokenDelta]) -> Finished:
    assert isinstance(deltas[-1], Finished), deltas
    return deltas[-1]


def _since(deltas: Sequence[TokenDelta], kind: type[TokenDelta]) -> Sequence[TokenDelta]:
    """From the first of that kind on."""
    return deltas[next((index for index, delta in enumerate(deltas) if isinstance(delta, kind)), len(deltas)) :]


def _or_skip(request: T | None) -> T:
    if request is None:
        raise unittest.SkipTest("this engine cannot be brought to that")
    return request
