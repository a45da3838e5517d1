"""Background mode with the official `openai` client: from the process that was asked, and from another."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.live import Runner, Server, until

pytestmark = pytest.mark.conformance

ENDLESS = "!tokens 3000 !rate 100 hello"
SHORT = "!tokens 30 !rate 60 hello"
LONG = "!tokens 150 !rate 50 hello"
LATE = "!tokens 5 !ttft 3000 hello"
TERMINAL = ("response.completed", "response.failed", "response.incomplete")
SAID_TO_BEGIN = "SELECT 1 FROM responses_ws_usagerecord WHERE response_id = ? AND output_tokens > 0"


@pytest.fixture
def client(server: Server, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
def elsewhere(second: Server, key: str) -> Iterator[OpenAI]:
    """The same project's client of another process."""
    with OpenAI(base_url=second.base_url, api_key=key, max_retries=0) as client:
        yield client


def finished(client: OpenAI, response_id: str) -> Response:
    """Poll as the guide says."""

    def poll() -> Response | None:
        response = client.responses.retrieve(response_id)
        return None if response.status in ("queued", "in_progress") else response

    return until(poll, f"{response_id} to end")


def test_create_and_poll(client: OpenAI, elsewhere: OpenAI, model: str) -> None:
    queued = client.responses.create(model=model, input=SHORT, background=True)

    ends = [finished(asked, queued.id) for asked in (client, elsewhere)]

    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    assert ends[0] == ends[1]
    assert ends[0].status == "completed" and ends[0].output_text
    assert ends[0].usage is not None and ends[0].usage.output_tokens >= 30


def test_a_stream_is_resumed_where_it_was_left(client: OpenAI, elsewhere: OpenAI, model: str) -> None:
    seen = []
    with client.responses.create(model=model, input=SHORT, background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 10:
                break
    response_id, position = seen[0].response.id, seen[-1].sequence_number

    rests = [
        list(asked.responses.retrieve(response_id, stream=True, starting_after=position))
        for asked in (client, elsewhere)
    ]

    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert rests[0] == rests[1]
    assert [event.sequence_number for event in seen + rests[0]] == list(range(10 + len(rests[0])))
    assert rests[0][-1].type == "response.completed"
    deltas = [event.delta for event in seen + rests[0] if event.type == "response.output_text.delta"]
    assert "".join(deltas) == rests[0][-1].response.output_text


def test_the_stream_helper_resumes_and_accumulates(client: OpenAI) -> None:
    with client.responses.stream(model="scripted", input=SHORT, background=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"

    with client.responses.stream(response_id=first.response.id, starting_after=5) as stream:
        numbers = [event.sequence_number for event in stream]
        response = stream.get_final_response()

    assert numbers == list(range(6, 6 + len(numbers)))
    assert response.output_text == finished(client, first.response.id).output_text


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_cancel_frees_the_engine(client: OpenAI, elsewhere: OpenAI, server: Server, place: str) -> None:
    with client.responses.create(model="scripted", input=ENDLESS, background=True, stream=True) as stream:
        events = iter(stream)
        response_id = next(events).response.id
        while next(events).type != "response.output_text.delta":
            pass
        asked = client if place == "here" else elsewhere

        cancelled = asked.responses.cancel(response_id)

        *_, last = events
    record = server.usage(response_id)
    assert cancelled.status == "cancelled" and cancelled.output[0].status == "incomplete"
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert asked.responses.cancel(response_id) == client.responses.retrieve(response_id) == cancelled
    assert (record["status"], record["reason"]) == ("cancelled", "cancel_requested")
    assert server.tokens.call(response_id)["output_tokens"] == record["output_tokens"] > 0


def test_what_cannot_be_cancelled(client: OpenAI) -> None:
    plain = client.responses.create(model="scripted", input="hello")
    ended = finished(client, client.responses.create(model="scripted", input="hello", background=True).id)

    for response_id in (plain.id, ended.id):
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(response_id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_unknown")


def test_a_background_response_is_continued_like_any_other(client: OpenAI, elsewhere: OpenAI) -> None:
    first = finished(client, client.responses.create(model="scripted", input="one", background=True).id)

    second = elsewhere.responses.create(model="scripted", input="two", previous_response_id=first.id)

    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


def test_an_idempotency_key_gives_the_same_response_everywhere(client: OpenAI, elsewhere: OpenAI) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first = client.responses.create(model="scripted", input="hello", extra_headers=headers)

    again = elsewhere.responses.create(model="scripted", input="hello", extra_headers=headers)

    assert again == first
    with pytest.raises(openai.ConflictError) as caught:
        client.responses.create(model="scripted", input="other", extra_headers=headers)
    assert caught.value.code == "idempotency_key_reused"


def test_a_restart_waits_for_what_runs_in_the_background(database: Path, key: str) -> None:
    with Server(directory=database, name="draining") as own:
        with OpenAI(base_url=own.base_url, api_key=key, max_retries=0) as client:
            response = client.responses.create(model="scripted", input=SHORT, background=True)
        own.signal(signal.SIGTERM)
        assert own.stop() == 0

        assert own.usage(response.id)["status"] == "completed"
        assert not own.trouble(), own.output()


def test_a_restart_hands_over_what_has_said_nothing(database: Path, key: str, client: OpenAI) -> None:
    with (
        Server(directory=database, name="leaving") as own,
        OpenAI(base_url=own.base_url, api_key=key, max_retries=0) as asked,
    ):
        talking = asked.responses.create(model="scripted", input=LONG, background=True)
        until(lambda: own.rows(SAID_TO_BEGIN, talking.id), "the other one to begin")
        stream = iter(asked.responses.create(model="scripted", input=LATE, background=True, stream=True))
        seen = [next(stream) for _ in range(3)]
        own.signal(signal.SIGTERM)
        rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=2))
        assert own.stop() == 0
        assert not own.trouble(), own.output()

    assert [event.sequence_number for event in seen + rest] == list(range(3 + len(rest)))
    assert [event.type for event in seen] == ["response.created", "response.queued", "response.in_progress"]
    assert (rest[0].type, rest[-1].type) == ("response.in_progress", "response.completed")
    assert finished(client, talking.id).status == "completed"


def test_whoever_is_left_goes_on_with_what_a_killed_process_ran(database: Path, key: str, client: OpenAI) -> None:
    """From the start where nobody has been told anything; a stream that was under way ends, and says so."""
    with (
        Server(directory=database, name="killed", limits={"background_lease_seconds": 3}) as own,
        OpenAI(base_url=own.base_url, api_key=key, max_retries=0) as asked,
    ):
        talking = iter(asked.responses.create(model="scripted", input=ENDLESS, background=True, stream=True))
        heard = [next(talking) for _ in range(10)]
        until(lambda: own.rows(SAID_TO_BEGIN, heard[0].response.id), "a checkpoint")
        polled = asked.responses.create(model="scripted", input=LATE, background=True)
        silent = asked.responses.create(model="scripted", input=LATE, background=True, stream=True)
        silent_id = next(iter(silent)).response.id
        own.signal(signal.SIGKILL)
        with pytest.raises((openai.APIError, httpx2.HTTPError)):
            heard += talking
    assert client.responses.retrieve(polled.id).status == "in_progress"

    late = list(client.responses.retrieve(silent_id, stream=True))
    rest = list(client.responses.retrieve(heard[0].response.id, stream=True, starting_after=heard[-1].sequence_number))

    assert [event.sequence_number for event in late] == list(range(len(late)))
    assert late[-1].type == "response.completed"
    assert finished(client, polled.id).status == "completed"
    assert [event.sequence_number for event in heard + rest] == list(range(len(heard) + len(rest)))
    response = rest[-1].response
    assert [event.type for event in rest if event.type in TERMINAL] == [rest[-1].type] == ["response.failed"]
    assert response.status == "failed" and response.error is not None and response.error.code == "server_error"
    assert response.usage is not None and response.usage.output_tokens > 0
    assert response == client.responses.retrieve(response.id)


def test_processes_of_their_own_run_what_web_workers_accept(tmp_path: Path) -> None:
    """Nothing runs while there is none; one is killed within a response, another one ends it and leaves in peace."""
    web = Server(directory=tmp_path, name="web", leaves_background=True)
    web.migrate()
    key = web.create_key("runners")
    with web, OpenAI(base_url=web.base_url, api_key=key, max_retries=0) as client:
        stream = iter(client.responses.create(model="scripted", input=LATE, background=True, stream=True))
        events = [next(stream) for _ in range(2)]
        response_id = events[0].response.id
        assert client.responses.retrieve(response_id).status == "queued"

        with Runner(directory=tmp_path, name="first", limits={"background_lease_seconds": 2}) as first:
            events.append(next(stream))
            assert client.responses.retrieve(response_id).status == "in_progress"
            first.signal(signal.SIGKILL)
        with Runner(directory=tmp_path, name="second") as second:
            events += stream
            waiting = client.responses.create(model="scripted", input=LATE, background=True)
            until(lambda: client.responses.retrieve(waiting.id).status == "in_progress", "the runner to take it")
            second.signal(signal.SIGTERM)
            until(lambda: client.responses.retrieve(waiting.id).status == "queued", "it to be handed back")
            assert second.stop() == 0
            assert not second.trouble(), second.output()
        cancelled = client.responses.cancel(waiting.id)

        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events if event.type in TERMINAL] == ["response.completed"]
        assert events[-1].response == client.responses.retrieve(response_id)
        assert (cancelled.status, cancelled.output) == ("cancelled", [])
        record = web.usage(response_id)
        assert (record["status"], record["output_tokens"]) == ("completed", events[-1].response.usage.output_tokens)
        assert not web.trouble(), web.output()
