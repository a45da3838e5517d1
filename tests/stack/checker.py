"""The invariants of RELIABILITY, asked of what clients saw, what the engine says it made, and what the books say.

`check` is called after every fault test, when the fault is over. It asks a server that stayed well.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

from responses_ws.runtime.rates import SLOT_SECONDS
from tests.live import until

from .rig import Rig, Web
from .turns import Turn

CANARY = re.compile(r"zdr-[0-9a-f]{16,}")
"""In the input of ``store: false`` turns: it is found nowhere afterwards."""
FRESH_SECONDS = 5.0
SLACK = 12
"""Files and threads that may stay: pools of connections to what is behind a server grow to what was needed at once."""
UNFINISHED = ("queued", "in_progress")
Record = dict[str, Any]


def check(rig: Rig, well: Web, *, bills: bool = True) -> dict[str, Any]:
    """Raises AssertionError with everything that is wrong. Gives the books, and forgets the history."""
    books = rig.settle(bills=bills)
    books["records"] = [record for record in books["records"] if record["response_id"] not in rig.checked]
    turns = rig.history.turns()
    made = engine_calls(rig, turns)
    wrong = [
        *posted_once(books, turns, made),
        *admitted(books, turns, made),
        *nothing_held(rig),
        *in_order(turns),
        *found_again(well, turns),
        *not_half(books, well, turns, made),
        *kept_apart(turns),
        *nowhere_kept(rig, turns),
        *served_again(rig, well),
        *(f"I10 in the logs: {line}" for line in rig.trouble()),
        *(f"the books: {difference}" for difference in books["differences"]),
    ]
    # Whatever is wrong now is not the next test's fault.
    rig.history.clear()
    rig.checked |= {record["response_id"] for record in books["records"]}
    assert not wrong, "\n".join(["", *wrong])
    return books


def engine_calls(rig: Rig, turns: Iterable[Turn]) -> dict[str, list[Record]]:
    """By response id, from the model server's log and the scripted engines'; waits for those that clients heard."""
    heard = {turn.response_id for turn in turns if turn.has_output}

    def look() -> dict[str, list[Record]] | None:
        calls: dict[str, list[Record]] = {}
        for log in rig.token_logs():
            for call in log.calls():
                calls.setdefault(call["request_id"], []).append(call)
        # An engine within a server dies with it, and says nothing of its last call.
        asked = {turn.response_id for turn in turns if turn.asked["model"] != "scripted"}
        return calls if (heard & asked) <= calls.keys() else None

    return until(look, "the engine to tell of all calls that were heard", seconds=20)


def posted_once(books: Record, turns: Iterable[Turn], made: dict[str, list[Record]]) -> Iterator[str]:
    """I1: what began to leave us is on one record, and each record is posted once."""
    counted = Counter(record["response_id"] for record in books["records"])
    for response_id, count in counted.items():
        if count != 1:
            yield f"I1 {response_id}: {count} usage records"
    for record in books["records"]:
        if record["status"] == "in_progress":
            yield f"I1 {record['response_id']} never ends"
        elif record["entries"] != 1 or not record["is_billed"]:
            yield f"I1 {record['response_id']} ({record['status']}): {record['entries']} entries"
    for turn in turns:
        if turn.has_output and turn.response_id not in counted:
            yield f"I1 {turn.label}: output of {turn.response_id} left us, and there is no record of it"


def admitted(books: Record, turns: list[Turn], made: dict[str, list[Record]]) -> Iterator[str]:
    """I2: no record without a turn; what it says is what the wire or, where nobody saw the end, the engine said."""
    known = {turn.response_id for turn in turns} | made.keys()
    strangers = [record for record in books["records"] if record["response_id"] not in known]
    # Killed between its row and anything that others could see of it.
    unseen = [turn for turn in turns if turn.response_id is None]
    if len(strangers) > len(unseen):
        first = strangers[0]["response_id"]
        yield f"I2 {len(strangers)} records, {first} first, were asked for by nobody; {len(unseen)} turns saw nothing"
    by_id = {turn.response_id: turn for turn in turns if turn.response_id}
    for record in books["records"]:
        turn = by_id.get(record["response_id"])
        if turn is None:
            continue
        usage = turn.terminal and turn.terminal.get("response", {}).get("usage")
        # Who was held up for so long that the reaper came first is not asked any more.
        if usage and record["status"] != "abandoned":
            told = {"input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"]}
            told["cached_tokens"] = usage["input_tokens_details"]["cached_tokens"]
            told["reasoning_tokens"] = usage["output_tokens_details"]["reasoning_tokens"]
            booked = {name: record[name] for name in told}
            if booked != told:
                yield f"I2 {turn.label}: the client was told {told}, the record says {booked}"
            continue
        calls = made.get(record["response_id"], [])
        was_made = sum(call["output_tokens"] for call in calls)
        is_exact = record["status"] == "cancelled" and not record["estimated"]
        if record["output_tokens"] > was_made or (is_exact and record["output_tokens"] != was_made):
            yield f"I2 {turn.label}: {record['output_tokens']} tokens on record ({record['status']}), {was_made} made"
        if record["status"] == "cancelled" and record["estimated"] and record["model"] == "scripted":
            yield f"I2 {turn.label}: estimated, and its engine counts"


def unbilled_tokens(books: Record, made: dict[str, list[Record]]) -> dict[str, int]:
    """By response id: what dead processes' engines made and no checkpoint told of."""
    return {
        record["response_id"]: sum(call["output_tokens"] for call in made[record["response_id"]])
        - record["output_tokens"]
        for record in books["records"]
        if record["status"] == "abandoned" and record["response_id"] in made
    }


def nothing_held(rig: Rig) -> Iterator[str]:
    """I3: no turn's place is taken any more, but for those of processes that died, and theirs not for ever."""

    def held() -> list[float]:
        with redis.Redis(port=rig.redis.port) as client:
            keys = list(client.scan_iter("responses_ws:rates:*:slots"))
            return [score for key in keys for _slot, score in client.zrangebyscore(key, now, "inf", withscores=True)]

    now = time.time()
    # What could not be given back, because Redis did not answer in time, ends by itself.
    deadline = time.monotonic() + SLOT_SECONDS + 5
    while len(held()) > rig.may_be_held and time.monotonic() < deadline:
        time.sleep(0.05)
    scores = held()
    if len(scores) > rig.may_be_held:
        yield f"I3 {len(scores)} places are held, of which {rig.may_be_held} by the dead"
    if any(score > now + SLOT_SECONDS + 1 for score in scores):
        yield f"I3 a place is held for too long: {scores}"


def in_order(turns: Iterable[Turn]) -> Iterator[str]:
    """I4: numbered without a gap; one terminal event, and nothing after it."""
    for turn in turns:
        numbers = [event["sequence_number"] for event in turn.events if event["type"] != "error"]
        if numbers != list(range(len(numbers))):
            yield f"I4 {turn.label}: numbered {numbers}"
        if turn.terminal is not None and turn.events[-1] is not turn.terminal:
            yield f"I4 {turn.label}: {turn.kinds} goes on after its end"


def found_again(well: Web, turns: Iterable[Turn]) -> Iterator[str]:
    """I5: what was acknowledged is there, as it was acknowledged."""
    by_key: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.is_acknowledged and turn.asked["store"]:
            by_key.setdefault(turn.key, []).append(turn)
    for key, kept in by_key.items():
        client = well.client(key)
        bodies = client.ask_all(f"/responses/{turn.response_id}" for turn in kept)
        inputs = client.ask_all(f"/responses/{turn.response_id}/input_items?limit=1" for turn in kept)
        for turn, (status, body), (input_status, listed) in zip(kept, bodies, inputs, strict=True):
            if status != 200 or body != turn.response:
                yield f"I5 {turn.label}: {turn.response_id} was completed and is now {status}: {body}"
            if input_status != 200 or said_in(listed["data"][0]) != turn.asked["input"]:
                yield f"I5 {turn.label}: its input is now {input_status}: {listed}"


def said_in(item: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in item.get("content", []))


def not_half(books: Record, well: Web, turns: Iterable[Turn], made: dict[str, list[Record]]) -> Iterator[str]:
    """I6: who saw no end gets one, or nothing; never half an answer as if it were whole."""
    for turn in turns:
        client = well.client(turn.key)
        if turn.response_id is None or turn.terminal is not None:
            continue
        status, body = client.ask("GET", f"/responses/{turn.response_id}")
        if status == 404:
            continue
        if status != 200 or body["status"] in UNFINISHED:
            yield f"I6 {turn.label}: {turn.response_id} has no end: {status} {body}"
        elif body["status"] == "completed":
            calls = made.get(turn.response_id, [])
            whole = [call for call in calls if call["outcome"] == "completed"]
            if calls and sum(call["output_tokens"] for call in whole) != body["usage"]["output_tokens"]:
                yield f"I6 {turn.label}: {turn.response_id} is completed with {body['usage']}; the engine: {calls}"
    for response_id, status in books["stored"].items():
        if status not in UNFINISHED:
            continue
        # Of a process that died: whoever asks is told of its end all the same.
        code, body = well.client().ask("GET", f"/responses/{response_id}")
        if body.get("status") in UNFINISHED:
            yield f"I6 {response_id} has no end: {code} {body}"


def kept_apart(turns: list[Turn]) -> Iterator[str]:
    """I7: the word of one tenant's prompts is in no other's events."""
    tenants = {turn.tenant for turn in turns}
    for turn in turns:
        read = {tenant for tenant in tenants - {turn.tenant} if tenant in str(turn.events)}
        if read:
            yield f"I7 {turn.label}: {turn.tenant} has read of {read}"


def nowhere_kept(rig: Rig, turns: Iterable[Turn]) -> Iterator[str]:
    """I8: nothing of ``store: false`` turns is in any file or in Redis."""
    canaries = {
        canary.encode() for turn in turns if not turn.asked["store"] for canary in CANARY.findall(str(turn.asked))
    }
    if not canaries:
        return
    for where, content in [*files_below(rig.directory), *redis_values(rig)]:
        yield from (f"I8 {canary.decode()} is in {where}" for canary in canaries if canary in content)


def files_below(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in directory.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()


def redis_values(rig: Rig) -> Iterator[tuple[str, bytes]]:
    for server in (rig.redis, rig.broker):
        with server.client() as client:
            for key in client.scan_iter():
                yield str(key), client.dump(key) or b""


def served_again(rig: Rig, well: Web) -> Iterator[str]:
    """I9: a fresh turn succeeds soon, and nothing has piled up in the process since it began."""
    turn = well.client().turn("after the fault", input="!tokens 3 fresh")
    rig.checked.add(turn.response_id or "")
    if not turn.is_acknowledged or (turn.first_event_seconds or 0) > FRESH_SECONDS:
        yield f"I9 a fresh turn gets {turn.kinds} after {turn.first_event_seconds} s"
    if well.at_first is None:
        well.at_first = well.resources()
    deadline = time.monotonic() + 5
    while piled_up(well) and time.monotonic() < deadline:
        time.sleep(0.05)
    if piled_up(well):
        yield f"I9 {well.resources()} are open, there were {well.at_first}"


def piled_up(well: Web) -> bool:
    assert well.at_first is not None
    return any(count > well.at_first[name] + SLACK for name, count in well.resources().items())
