"""One agent's chain over several servers, and whether the books say what the client saw."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI
from openai.types.responses import Response

from .stack import Stack

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
BILLING_SECONDS = 60.0
BACKGROUND_SECONDS = 30.0
NANO_PER_TOKEN = {"input": 100, "cached_input": 25, "output": 400}
PRICES = f"""
from responses_ws.models import Price
for model in ("scripted", "llama"):
    for component, nano in {NANO_PER_TOKEN}.items():
        Price.objects.create(model=model, component=component, nano_per_million=nano * 1_000_000)
"""
LEDGER = """
from django.db.models import Sum
from responses_ws.models import Journal, Posting, UsageRecord
print(Journal.objects.count(), UsageRecord.objects.filter(billed_at=None).count(),
      *UsageRecord.objects.aggregate(Sum("input_tokens"), Sum("output_tokens")).values(),
      Posting.objects.filter(amount_nano__gt=0).aggregate(Sum("amount_nano"))["amount_nano__sum"] or 0)
"""


@dataclass
class Books:
    """What the database says; amounts in nano-USD."""

    journals: int
    unbilled: int
    input_tokens: int
    output_tokens: int
    amount_nano: int


@dataclass
class Seen:
    """What a client saw of its chain."""

    responses: list[Response] = field(default_factory=list)

    def add(self, response: Response) -> Response:
        self.responses.append(response)
        return response

    def books(self) -> "Books":
        """What the books have to say of it."""
        usages = [response.usage for response in self.responses if response.usage]
        cached = sum(usage.input_tokens_details.cached_tokens for usage in usages)
        received = sum(usage.input_tokens for usage in usages)
        made = sum(usage.output_tokens for usage in usages)
        prices = NANO_PER_TOKEN
        amount = (received - cached) * prices["input"] + cached * prices["cached_input"] + made * prices["output"]
        return Books(len(self.responses), 0, received, made, amount)


def run_manage(stack: Stack, *arguments: str) -> str:
    """``manage.py`` inside the first web server; gives what it printed."""
    result = stack["web1"].execute(("python", "manage.py", *arguments))
    if result.returncode:
        raise RuntimeError(f"manage.py {arguments[0]}: {result.stdout}{result.stderr}")
    return result.stdout


def create_key(stack: Stack) -> str:
    return run_manage(stack, "responses_ws_createkey", "stack").strip().splitlines()[-1]


def create_prices(stack: Stack) -> None:
    run_manage(stack, "shell", "-c", PRICES)


def client(url: str, key: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30)


def turn(client: OpenAI, **request: Any) -> Response:
    """One turn on a socket of its own."""
    with client.responses.connect() as connection:
        connection.response.create(**{"model": "scripted", "store": True, **request})
        while True:
            event = connection.recv()
            if event.type in ("response.completed", "response.failed", "response.incomplete", "error"):
                break
    is_cut = event.type == "response.incomplete" and "max_output_tokens" in request
    if event.type != "response.completed" and not is_cut:
        raise RuntimeError(f"the turn ended with {event}")
    return event.response


def in_background(asked: OpenAI, polled: OpenAI, **request: Any) -> Response:
    """A background response, asked of one server and polled at another until it has ended."""
    response = asked.responses.create(**{"model": "scripted", "background": True, **request})
    deadline = time.monotonic() + BACKGROUND_SECONDS
    while response.status in ("queued", "in_progress"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"it is still {response.status}")
        time.sleep(0.05)
        response = polled.responses.retrieve(response.id)
    return response


def ask_for_tool(client: OpenAI, seen: Seen) -> tuple[str, dict[str, str]]:
    """A first turn that ends in a tool call; gives its response id and the tool's output item."""
    response = seen.add(turn(client, input="What is the weather in Paris?", tools=[WEATHER]))
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        raise RuntimeError(f"the model called no tool: {response.output}")
    output = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny, 21 degrees"}
    return response.id, output


def books(stack: Stack) -> Books:
    return Books(*map(int, run_manage(stack, "shell", "-c", LEDGER).strip().splitlines()[-1].split()))


def billed_books(stack: Stack, *, journals: int) -> Books:
    """The books once ``journals`` entries are there, or as they are when that takes too long."""
    deadline = time.monotonic() + BILLING_SECONDS
    while True:
        found = books(stack)
        if (found.journals >= journals and found.unbilled == 0) or time.monotonic() > deadline:
            return found


def redis_hits(stack: Stack) -> int:
    """Reads of redis-state that found something."""
    text = stack["redis-state"].execute(("redis-cli", "info", "stats")).stdout
    match = re.search(r"keyspace_hits'?:\s*(\d+)", text)
    if match is None:
        raise RuntimeError(f"redis-state does not say what was hit: {text}")
    return int(match[1])
