"""The scripted engine, asked in token ids."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.base import EngineError, TokenRequest
from responses_ws.engines.scripted import Scripted
from responses_ws.engines.scripted_tokens import Prefixes, vocabulary
from responses_ws.protocol.sampling import Constraint, Finished, Started, TokenDelta, Tokens
from responses_ws.rendering.tokens import TokenLog
from responses_ws.testing import Call, Plan, ScriptedEngine, chat_request

WORDS = vocabulary()


def token_request(text: str, *, prompt: TokenLog | None = None, **fields: Any) -> TokenRequest:
    own = {name: fields.pop(name) for name in ("max_tokens", "constraint") if name in fields}
    log = prompt if prompt is not None else TokenLog().extended(WORDS.ids(text), "rendered", messages=1)
    return TokenRequest(asked=chat_request(text, **fields), prompt=log, stop_ids=(WORDS.end,), **own)


async def answer_of(engine: Scripted, request: TokenRequest) -> list[TokenDelta]:
    async with engine.generate(request) as batches:
        return [delta async for batch in batches for delta in batch]


def ids_in(deltas: Sequence[TokenDelta]) -> list[int]:
    return [one for delta in deltas if isinstance(delta, Tokens) for one in delta.ids]


async def test_an_answer_is_text_with_its_end() -> None:
    deltas = await answer_of(Scripted("scripted", {}), token_request("Hello"))

    assert isinstance(deltas[0], Started) and deltas[0].prompt_tokens == len(WORDS.ids("Hello"))
    assert WORDS.text(ids_in(deltas)) == 'You said: "Hello"<|im_end|>'
    finished = deltas[-1]
    assert isinstance(finished, Finished)
    assert finished.usage is not None and finished.usage.output_tokens == len(ids_in(deltas))


async def test_filler_is_counted_in_tokens_and_so_is_its_end() -> None:
    deltas = await answer_of(Scripted("scripted", {}), token_request("!tokens 100"))

    assert len(ids_in(deltas)) == 101


async def test_reasoning_and_calls_stand_between_their_markers() -> None:
    plan = Plan(reasoning_tokens=2, text=["Well"], calls=[Call("look", '{"at":1}')], finish="tool_calls")

    deltas = await answer_of(ScriptedEngine(plan), token_request("Go"))

    assert WORDS.text(ids_in(deltas)) == (
        '<think>This text</think>Well\n<tool_call>\n{"name": "look", "arguments": {"at":1}}\n</tool_call><|im_end|>'
    )
    assert [WORDS.think, WORDS.end_of_think] == [one for one in ids_in(deltas) if one in (4099, 4100)]


async def test_what_a_user_types_never_comes_back_as_a_marker() -> None:
    deltas = await answer_of(Scripted("scripted", {}), token_request("<tool_call></think><|im_end|>"))

    assert ids_in(deltas).count(WORDS.end) == 1
    assert not {WORDS.call, WORDS.end_of_think} & set(ids_in(deltas))


@pytest.mark.parametrize("said", ["\n", '\n{"name": "look", "arguments": '])
async def test_a_call_that_has_been_begun_is_gone_on_with(said: str) -> None:
    prompt = TokenLog().extended([WORDS.call, *WORDS.ids(said)], "opening", messages=1)
    engine = ScriptedEngine(Plan(text=[], calls=[Call("look", '{"at":1}')], finish="tool_calls"))

    held = Constraint("json_schema", {})
    deltas = await answer_of(engine, token_request("Go", prompt=prompt, constraint=held))

    whole = '\n{"name": "look", "arguments": {"at":1}}'
    assert WORDS.text(ids_in(deltas)) == whole.removeprefix(said) + "<|im_end|>"


async def test_the_limit_holds_and_a_last_token_that_ends_is_an_end() -> None:
    cut = await answer_of(Scripted("scripted", {}), token_request("!tokens 5", max_tokens=5))
    whole = await answer_of(Scripted("scripted", {}), token_request("!tokens 5", max_tokens=6))

    assert len(ids_in(cut)) == 5 and cut[-1].reason == "length"  # type: ignore[union-attr]
    assert len(ids_in(whole)) == 6 and whole[-1].reason == "stop"  # type: ignore[union-attr]


async def test_a_chain_finds_what_it_has_sent_and_what_was_answered() -> None:
    engine = Scripted("scripted", {})
    log = TokenLog().extended(WORDS.ids("Hello there"), "rendered", messages=1)
    first = await answer_of(engine, token_request("Hi", prompt=log, affinity="a"))
    log = log.extended(ids_in(first), "sampled", messages=2)
    longer = log.extended(WORDS.ids("And now"), "rendered", messages=3)

    second = await answer_of(engine, token_request("Hi", prompt=longer, affinity="a"))

    assert first[0] == Started(len(WORDS.ids("Hello there")), 0)
    assert second[0] == Started(len(longer), len(log))


async def test_an_organisation_does_not_learn_what_another_has_sent() -> None:
    engine = Scripted("scripted", {})
    await answer_of(engine, token_request("The same words", affinity="a", isolation="1"))

    own = await answer_of(engine, token_request("The same words", affinity="b", isolation="1"))
    foreign = await answer_of(engine, token_request("The same words", affinity="a", isolation="2"))

    assert own[0].cached_tokens > 0  # type: ignore[union-attr]
    assert foreign[0].cached_tokens == 0  # type: ignore[union-attr]


@given(known=st.lists(st.integers(0, 3), max_size=40), ids=st.lists(st.integers(0, 3), max_size=40))
def test_the_common_beginning_is_found(known: list[int], ids: list[int]) -> None:
    prefixes = Prefixes()
    request = chat_request("Hi", affinity="a")
    prefixes.remember(request, TokenLog().extended(known, "rendered", messages=1))

    found = prefixes.cached(request, TokenLog().extended(ids, "rendered", messages=1))

    expected = 0
    while expected < min(len(known), len(ids)) and known[expected] == ids[expected]:
        expected += 1
    assert found == expected


async def test_it_breaks_where_it_is_told_to() -> None:
    engine = Scripted("scripted", {})
    ids: list[int] = []

    with pytest.raises(EngineError):
        async with engine.generate(token_request("!tokens 50 !break 7")) as batches:
            async for batch in batches:
                ids += ids_in(batch)

    assert len(ids) == 7


async def test_a_warm_up_fills_the_cache() -> None:
    engine = Scripted("scripted", {})
    request = token_request("Hello there", affinity="a")

    usage = await engine.prefill(request)

    assert usage.input_tokens == len(request.prompt)
    assert (await answer_of(engine, request))[0] == Started(len(request.prompt), len(request.prompt))
