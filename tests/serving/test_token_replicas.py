"""Another replica of a model that is asked in token ids: the same ids, rendered once."""

from collections.abc import AsyncIterator, Iterator

import pytest
from django.test import override_settings

from responses_ws.connection.chain import Chains
from responses_ws.engines.base import EngineError
from responses_ws.engines.registry import registry
from responses_ws.protocol.sampling import Started, TokenDelta, Tokens
from responses_ws.serving.admission import Principal

from .bytes_model import BytesEngine, ids_of
from .turns import asked, response_of


class Dying(BytesEngine):
    """Reads its prompt, samples what cannot be told yet, and is gone."""

    async def _answer(self, ids: list[int], length: int) -> AsyncIterator[list[TokenDelta]]:
        yield [Started(length, 5)]
        yield [Tokens(ids)]
        raise EngineError("unavailable", "the process is gone")


@pytest.fixture(autouse=True)
def _models() -> Iterator[None]:
    entries = [{"ENGINE": "dying", "WEIGHT": 1_000_000}, {"ENGINE": "living", "UPSTREAM": "theirs"}]
    with override_settings(RESPONSES_WS={"MODELS": {"bytes": {"REPLICAS": entries}}}):
        yield


async def test_the_next_replica_gets_the_same_ids(principal: Principal) -> None:
    dying, living = Dying("<call>wea"), BytesEngine("Cold.<end>", "Warm.<end>")
    registry.install("dying", dying)
    registry.install("living", living)
    chains = Chains()

    first = await response_of(asked(principal, "Oslo?", model="bytes", chains=chains))
    await response_of(asked(principal, "Rome?", model="bytes", chains=chains, previous_response_id=first["id"]))

    assert (first["status"], first["output"][0]["content"][0]["text"]) == ("completed", "Cold.")
    # One prompt object: not rendered twice.
    assert dying.requests[0].prompt is living.requests[0].prompt
    assert [request.asked.model for request in (*dying.requests, *living.requests)] == ["bytes", "theirs", "theirs"]
    # What the first has sampled is nobody's.
    said = ids_of("Cold.<end>")
    assert first["usage"]["output_tokens"] == len(said)
    assert living.prompts[1][: len(living.prompts[0]) + len(said)].tolist() == [*living.prompts[0], *said]
