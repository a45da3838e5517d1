from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.protocol.items import calls_left_open, require_outputs
from responses_ws.rendering.chat import MEDIA, ChatPrompt
from responses_ws.rendering.truncation import without_oldest

Item = dict[str, Any]
LONG = "x" * 400


def user(text: str = LONG) -> Item:
    return {"type": "message", "role": "user", "content": text}


def system(text: str = "Be brief.") -> Item:
    return {"role": "developer", "content": text}


def assistant(text: str = LONG) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(call_id: str) -> Item:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, said: str = LONG) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def tokens(items: list[Item]) -> int:
    return ChatPrompt().extended(items).estimated_tokens


U1, A1, U2, A2, U3 = user("1" + LONG), assistant("1"), user("2" + LONG), assistant("2"), user("3" + LONG)
C1, O1, C2, O2, C3, O3 = call("1"), output("1"), call("2"), output("2"), call("3"), output("3")
KEPT: dict[str, tuple[list[Item], int, list[Item] | None]] = {
    # items, room, what is kept
    "the oldest turn": ([U1, A1, U2, A2, U3], 350, [U2, A2, U3]),
    "two": ([U1, A1, U2, A2, U3], 200, [U3]),
    "no more than must": ([U1, A1, U2, A2, U3], 250, [U3]),
    "not the instructions": ([system(), U1, A1, U2, A2, U3], 200, [system(), U3]),
    "wherever they stand": ([U1, system(), A1, system("s"), U2], 200, [system(), system("s"), U2]),
    "a turn with its calls": ([U1, C1, O1, A1, U2], 180, [U2]),
    "of the newest turn the oldest calls": ([U1, C1, O1, C2, O2, C3, O3], 300, [U1, C3, O3]),
    "all calls of older turns first": ([U1, C1, O1, A1, U2, C2, O2, C3, O3], 600, [U2, C2, O2, C3, O3]),
    "calls side by side stay together": ([U1, C1, C2, O1, O2, C3, O3], 350, [U1, C3, O3]),
    "a user message amid a call is no place to cut": ([U1, C1, U2, O1, U3], 200, [U3]),
    "what must stay is too long": ([U1, A1, U2], 50, None),
    "a single message": ([U1], 50, None),
    "nothing to leave out": ([U1, C1, O1], 150, None),
}


@pytest.mark.parametrize(("items", "room", "kept"), KEPT.values(), ids=KEPT)
def test_the_oldest_turns_go(items: list[Item], room: int, kept: list[Item] | None) -> None:
    assert without_oldest(items, most_tokens=room, takes=MEDIA) == kept


def test_a_little_more_goes_so_that_the_next_turns_fit_too() -> None:
    items = [U1, A1] * 10 + [U2]

    kept = without_oldest(items, most_tokens=1000, takes=MEDIA)

    assert kept is not None
    assert 600 < tokens(kept) <= 750


def test_media_that_the_engine_does_not_take_weigh_nothing() -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}

    assert without_oldest([U1, A1, picture], most_tokens=150, takes=frozenset()) == [picture]
    assert without_oldest([U1, A1, picture], most_tokens=150, takes=MEDIA) == [picture]


rounds = st.lists(st.sampled_from(["user", "system", "assistant", "call", "calls"]), min_size=1, max_size=12)


@given(rounds, st.integers(20, 1500))
def test_what_is_kept_is_a_context_of_its_own(kinds: list[str], room: int) -> None:
    items: list[Item] = [user()]
    for number, kind in enumerate(kinds):
        if kind == "call":
            items += [call(f"{number}"), output(f"{number}")]
        elif kind == "calls":
            items += [call(f"{number}a"), call(f"{number}b"), output(f"{number}b"), output(f"{number}a")]
        else:
            items.append({"user": user, "system": system, "assistant": assistant}[kind]())

    kept = without_oldest(items, most_tokens=room, takes=MEDIA)

    if kept is None:
        return
    assert tokens(kept) <= room
    assert kept[-1] == items[-1]
    # No call without its output, no output without its call.
    require_outputs(calls_left_open({}, kept))
    assert [item for item in kept if item.get("role") == "developer"] == [
        item for item in items if item.get("role") == "developer"
    ]
    assert any(item.get("role") == "user" for item in kept)
