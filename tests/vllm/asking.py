"""What a test asks the server itself, beside the adapter."""

import os
import urllib.request
from typing import Any

import msgspec

from .server import MODEL


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The decoded answer of the server with all routes."""
    url, headers = os.environ["VLLM_URL"] + path, {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, msgspec.json.encode(body), headers), timeout=60) as answer:
        decoded: dict[str, Any] = msgspec.json.decode(answer.read())
    return decoded


def rendered(**asked: Any) -> list[int]:
    """Token ids of a conversation in messages, as the server's own template has them."""
    ids: list[int] = post("/v1/chat/completions/render", {"model": MODEL, **asked})["token_ids"]
    return ids


def said(ids: list[int]) -> str:
    """The text of ids, as the server's own tokenizer has it."""
    text: str = post("/detokenize", {"model": MODEL, "tokens": ids})["prompt"]
    return text


def calls_in(url: str) -> float:
    """How many calls a server has."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))
