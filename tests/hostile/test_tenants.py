"""Many tenants at once on one server: nobody ever reads a word, or an id, of somebody else."""

import asyncio
import contextlib
import random
import re
from collections.abc import Callable

import pytest
from websockets.exceptions import ConnectionClosed

from tests.conformance.raw import TERMINAL, Door, Socket
from tests.live import Server

pytestmark = pytest.mark.stack

CANARY = re.compile(r"canary-(\d+)-")
KEYS = """
from responses_ws.models import ApiKey, Organization, Project
organization, _ = Organization.objects.get_or_create(name="many")
for number in range({count}):
    project, _ = Project.objects.get_or_create(organization=organization, name=f"tenant {{number}}")
    print(ApiKey.objects.create_with_secret(project=project, name="tenant").secret)
"""


class Tenant:
    """One of them: two lanes of a socket, and HTTP. Everything it says has its number in it."""

    def __init__(self, door: Door, number: int, seen: list[str]) -> None:
        self.door = door
        self.number = number
        self.chance = random.Random(number)
        self.turns = 0
        self.last: dict[str, str | None] = {"a": None, "b": None}
        self.others = seen
        """Ids that anybody has been told."""

    def words(self) -> str:
        self.turns += 1
        return f"!tokens {self.chance.randrange(1, 9)} canary-{self.number}-{self.turns}"

    async def work(self, turns: int) -> None:
        while self.turns < turns:
            # Two hundred of them in one process may be too slow for the patience of this server: then they come again.
            with contextlib.suppress(ConnectionClosed):
                async with self.door.socket(ping_interval=None) as socket:
                    while self.turns < turns:
                        if self.chance.randrange(8) == 0:
                            await self.by_http()
                        else:
                            await self.on_socket(socket)

    async def on_socket(self, socket: Socket) -> None:
        """Both lanes at once; sometimes with an id that is somebody else's."""
        for lane in self.last:
            previous = self.last[lane]
            if self.others and self.chance.randrange(10) == 0:
                previous = self.chance.choice(self.others[-200:])
            store = self.chance.randrange(2) == 0
            fields = {"previous_response_id": previous, "input": f"canary-{self.number}-x", "store": store}
            # The answer repeats what was asked: without directives, in the words of this tenant.
            await socket.create(stream_id=lane, **{**fields, "instructions": self.words()})
        ended = 0
        while ended < len(self.last):
            event = await socket.receive()
            self.check(event)
            if event["type"] in TERMINAL:
                ended += 1
                is_good = event["type"] == "response.completed"
                self.last[event["stream_id"]] = event["response"]["id"] if is_good else None
                if is_good:
                    self.others.append(event["response"]["id"])

    async def by_http(self) -> None:
        name = self.chance.choice(self.others) if self.others else "resp_x"
        status, body = await self.door.get(f"{name}/input_items")
        self.check(body)
        assert status in (200, 404)
        self.check((await self.door.post(input=self.words()))[1])

    def check(self, told: object) -> None:
        found = set(CANARY.findall(str(told)))
        assert found <= {str(self.number)}, f"tenant {self.number} was told: {told}"


async def interleave(door: Door, figure: Callable[..., None], *, tenants: int, turns: int) -> None:
    server: Server = door.server
    printed = await asyncio.to_thread(server.manage, "shell", "-v", "0", "-c", KEYS.format(count=tenants))
    keys = [line for line in printed.splitlines() if line.startswith("sk-")]
    seen: list[str] = []
    working = [Tenant(Door(server, key), number, seen) for number, key in enumerate(keys)]

    await asyncio.gather(*(tenant.work(turns) for tenant in working))

    # In its own rows a tenant has its own words only.
    sql = (
        "SELECT chain.project_id AS project, item.body AS body FROM responses_ws_storeditem item "
        "JOIN responses_ws_chain chain ON chain.id = item.chain_id WHERE item.body LIKE '%canary-%'"
    )
    owners: dict[str, set[int]] = {}
    for row in await asyncio.to_thread(server.rows, sql):
        for number in CANARY.findall(row["body"]):
            owners.setdefault(number, set()).add(row["project"])
    done = sum(tenant.turns for tenant in working)
    figure(27, f"turns of {tenants} tenants at once", target="0 canaries of others", measured="0", turns=done)
    assert len(keys) == tenants
    assert len(owners) > tenants / 2
    assert all(len(projects) == 1 for projects in owners.values())


async def test_no_word_crosses_between_tenants(door: Door, figure: Callable[..., None]) -> None:
    await interleave(door, figure, tenants=20, turns=10)


@pytest.mark.chaos
async def test_no_word_crosses_between_tenants_in_very_many_turns(door: Door, figure: Callable[..., None]) -> None:
    await interleave(door, figure, tenants=200, turns=500)
