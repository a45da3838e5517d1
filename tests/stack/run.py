"""``make stack``: all services, one chain over two web servers, the books; with STACK_KEEP=1 until Ctrl-C."""

import os
import sys
import threading
import time

from tests.live import close_nursery

from .chain import (
    Seen,
    ask_for_tool,
    billed_books,
    client,
    create_key,
    create_prices,
    in_background,
    redis_hits,
    run_manage,
    turn,
)
from .stack import Stack


def run() -> int:
    environ = {"EMBEDDED_MODEL": os.environ.get("EMBEDDED_MODEL", "0")} | os.environ
    started = time.monotonic()
    stack = Stack(environ=environ, say=say)
    with stack:
        say(f"all healthy after {time.monotonic() - started:.1f} s; logs in {stack.directory}")
        is_well = run_chain(stack)
        if os.environ.get("STACK_KEEP") == "1":
            keep(stack)
    trouble = stack.trouble()
    for line in trouble:
        say(f"in the logs: {line}")
    if is_well and not trouble:
        stack.discard()
        say("OK")
        return 0
    say(f"FAILED; logs in {stack.directory}")
    return 1


def run_chain(stack: Stack) -> bool:
    """A chain from web 1 over web 2 to the proxy; prints what happens, gives whether the books agree."""
    key = create_key(stack)
    create_prices(stack)
    seen = Seen()
    first_id, output = ask_for_tool(client(stack.url("web1"), key), seen)
    say(f"turn 1 on web1 over WebSocket: {first_id} calls a tool")
    hits = redis_hits(stack)
    second = seen.add(turn(client(stack.url("web2"), key), previous_response_id=first_id, input=[output]))
    say(f"turn 2 on web2 continues it with the tool's output alone: {second.output_text!r}")
    say(f"redis-state answered {redis_hits(stack) - hits} reads of that turn")
    if "proxy" in stack:
        through = client(stack.url("proxy"), key)
        third = seen.add(turn(through, previous_response_id=second.id, input="Thank you!"))
        say(f"turn 3 through the proxy over WebSocket: {third.output_text!r}")
        with through.responses.stream(model="scripted", previous_response_id=third.id, input="And over SSE?") as stream:
            fourth = seen.add(stream.get_final_response())
        say(f"turn 4 through the proxy over SSE: {fourth.output_text!r}")
    fifth = seen.add(in_background(client(stack.url("web1"), key), client(stack.url("web2"), key), input="Later."))
    say(f"turn 5 in the background, asked of web1 and polled at web2: {fifth.output_text!r}")
    if "llama" in stack:
        answer = seen.add(turn(client(stack.url("web1"), key), model="llama", input="Hello", max_output_tokens=8))
        say(f"turn 6 by the engine of the profile llama: {answer.usage.output_tokens} tokens")
    expected = seen.books()
    found = billed_books(stack, journals=expected.journals)
    say(f"seen by the client: {expected}")
    say(f"in the books:       {found}")
    for line in run_manage(stack, "responses_ws_reconcile").splitlines():
        say(f"reconcile: {line}")
    return found == expected


def keep(stack: Stack) -> None:
    """Leave everything running until Ctrl-C."""
    for name, running in stack.services.items():
        for inside, outside in running.place.ports.items():
            say(f"{name}:{inside} is 127.0.0.1:{outside}")
    say("running; Ctrl-C stops everything")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass


def say(line: str) -> None:
    print(f"stack: {line}", flush=True)


if __name__ == "__main__":
    try:
        code = run()
    finally:
        close_nursery()
    sys.exit(code)
