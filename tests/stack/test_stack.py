"""Stories over several processes: two web servers, Redis, PostgreSQL, a Celery worker."""

import json
import re
import signal
import urllib.request

import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed

from tests.live import until

from .chain import Seen, ask_for_tool, billed_books, books, client, in_background, redis_hits, run_manage, turn
from .stack import Stack

pytestmark = pytest.mark.stack


def test_a_stored_turn_is_continued_on_another_server_through_redis(stack: Stack, web1: OpenAI, web2: OpenAI) -> None:
    first_id, output = ask_for_tool(web1, Seen())
    hits = redis_hits(stack)

    second = turn(web2, previous_response_id=first_id, input=[output])

    assert second.output_text == 'The tool returned "sunny, 21 degrees".'
    assert redis_hits(stack) > hits


def test_a_stored_turn_is_continued_when_redis_is_gone(stack: Stack, web1: OpenAI, web2: OpenAI) -> None:
    first_id, output = ask_for_tool(web1, Seen())
    stack["redis-state"].kill()

    try:
        second = turn(web2, previous_response_id=first_id, input=[output])
    finally:
        stack.start_again("redis-state")

    assert second.output_text == 'The tool returned "sunny, 21 degrees".'


def test_a_server_says_that_its_redis_is_gone_and_is_ready_all_the_same(stack: Stack) -> None:
    def says(expected: str) -> bool:
        with urllib.request.urlopen(f"{stack.url('web1')}/readyz", timeout=10) as answer:
            return answer.status == 200 and json.load(answer)["status"] == expected

    # A connection from before an earlier test's restart is found dead first.
    until(lambda: says("ok"), "the server to have its Redis")
    stack["redis-state"].kill()
    try:
        until(lambda: says("degraded"), "the server to notice")
    finally:
        stack.start_again("redis-state")

    until(lambda: says("ok"), "the server to find it again")


def test_what_ended_while_the_worker_was_down_is_billed_when_it_is_back(stack: Stack, web1: OpenAI) -> None:
    before = books(stack)
    stack["worker"].kill()
    seen = Seen()

    try:
        seen.add(turn(web1, input="Hello"))
        seen.add(turn(web1, input="Hello again"))
        meanwhile = books(stack)
    finally:
        stack.start_again("worker")
    after = billed_books(stack, journals=before.journals + before.unbilled + 2)

    assert meanwhile.unbilled >= 2
    assert after.unbilled == 0
    assert after.output_tokens - before.output_tokens == seen.books().output_tokens


def test_the_books_say_what_the_client_saw(stack: Stack, key: str, web1: OpenAI, web2: OpenAI) -> None:
    before = billed_books(stack, journals=books(stack).journals)
    seen = Seen()

    first_id, output = ask_for_tool(web1, seen)
    second = seen.add(turn(web2, previous_response_id=first_id, input=[output]))
    seen.add(turn(web1, previous_response_id=second.id, input="Thank you!"))
    expected = seen.books()
    after = billed_books(stack, journals=before.journals + 3)

    assert after.journals - before.journals == expected.journals
    assert after.input_tokens - before.input_tokens == expected.input_tokens
    assert after.output_tokens - before.output_tokens == expected.output_tokens
    assert after.amount_nano - before.amount_nano == expected.amount_nano
    assert "The books agree." in run_manage(stack, "responses_ws_reconcile")


def test_a_background_response_is_run_by_the_process_for_it(stack: Stack, web1: OpenAI, web2: OpenAI) -> None:
    response = in_background(web1, web2, input="Hello")

    token = stack["background"].service.environment["METRICS_TOKEN"]
    request = urllib.request.Request(f"{stack.url('background')}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        metrics = answer.read().decode()
    assert (response.status, response.output_text) == ("completed", 'You said: "Hello"')
    assert re.search(r'^responses_ws_turns_total\{.*status="completed".*\} [1-9]', metrics, re.MULTILINE)


def test_the_proxy_passes_sockets_and_streams(stack: Stack, key: str) -> None:
    if "proxy" not in stack:
        pytest.skip("nginx is not installed here")

    with client(stack.url("proxy"), key) as through:
        first = turn(through, input="Hello")
        with through.responses.stream(model="scripted", previous_response_id=first.id, input="More") as stream:
            kinds = [event.type for event in stream]

    assert first.output_text == 'You said: "Hello"'
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_a_running_turn_ends_before_a_stopping_server_closes(stack: Stack, web2: OpenAI) -> None:
    kinds: list[str] = []

    try:
        with web2.responses.connect() as connection:
            connection.response.create(model="scripted", input="!tokens 100 !rate 50")
            while connection.recv().type != "response.output_text.delta":
                pass
            stack["web2"].signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    kinds.append(connection.recv().type)
        code = stack["web2"].stop()
    finally:
        stack["web2"].stop()
        stack.start_again("web2")

    # The error tells clients to connect again.
    assert kinds[-2:] == ["response.completed", "error"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert code == 0
