"""Aliases: another name for a model, and no way around what a key may use."""

from collections.abc import Iterator

import msgspec
import pytest
from django.test import AsyncClient, override_settings

from responses_ws.connection.chain import Chains
from responses_ws.models import ApiKey, UsageRecord
from responses_ws.protocol.errors import ModelNotFound
from responses_ws.runtime import dbpool
from responses_ws.serving.admission import Principal
from responses_ws.testing import ResponsesCommunicator
from responses_ws.transports import authentication

from .turns import asked, response_of

SCRIPTED = "responses_ws.engines.scripted.Scripted"
MODELS = {"small": {"ENGINE": "main"}, "large": {"ENGINE": "main"}, "gpt": {"ALIAS": "large"}}


@pytest.fixture(autouse=True)
def _models() -> Iterator[None]:
    with override_settings(RESPONSES_WS={"ENGINES": {"main": {"ENGINE": SCRIPTED}}, "MODELS": MODELS}):
        yield


def confined(principal: Principal, *models: str) -> Principal:
    return msgspec.structs.replace(principal, allowed_models=frozenset(models))


async def confine(api_key: ApiKey, *models: str) -> None:
    await dbpool.run(lambda: ApiKey.objects.filter(pk=api_key.pk).update(allowed_models=list(models)))


async def test_a_response_and_its_record_go_by_the_name_of_the_model(principal: Principal) -> None:
    response = await response_of(asked(principal, "Hi", model="gpt"))

    record = await dbpool.run(lambda: UsageRecord.objects.get(response_id=response["id"]))
    assert (response["model"], record.model) == ("large", "large")


async def test_a_chain_goes_on_under_either_name(principal: Principal) -> None:
    chains = Chains()
    for name in ("gpt", "large", "gpt"):
        response = await response_of(
            asked(
                principal,
                "On",
                model=name,
                chains=chains,
                previous_response_id=chains.links()[0].response_id if chains.links() else None,
            )
        )

        assert response["model"] == "large"
    (link,) = chains.links()
    assert len(link.items) == 6


@pytest.mark.parametrize("model", ["small", "large", "gpt"])
@pytest.mark.parametrize("allowed", ["small", "large", "gpt"])
async def test_a_key_for_one_name_may_use_the_other_and_no_more(principal: Principal, allowed: str, model: str) -> None:
    ask = asked(confined(principal, allowed), "Hi", model=model, store=False)

    if (allowed == "small") == (model == "small"):
        assert (await response_of(ask))["status"] == "completed"
    else:
        with pytest.raises(ModelNotFound):
            await response_of(ask)


async def test_rights_are_asked_for_on_every_turn_of_a_socket(api_key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "SECONDS_CACHED", 0.0)
    async with ResponsesCommunicator(api_key.secret) as socket:
        allowed = await socket.turn(model="gpt", store=False, input="Hi")
        await confine(api_key, "small")
        refused = await socket.turn(model="gpt", store=False, input="Hi")

    assert allowed[-1]["type"] == "response.completed"
    assert refused[-1]["error"]["code"] == "model_not_found"


async def test_an_alias_is_listed_to_those_who_may_use_it(api_key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "SECONDS_CACHED", 0.0)
    headers = {"Authorization": f"Bearer {api_key.secret}"}

    everything = (await AsyncClient().get("/v1/models", headers=headers)).json()
    await confine(api_key, "small")
    little = (await AsyncClient().get("/v1/models", headers=headers)).json()

    assert [model["id"] for model in everything["data"]] == ["small", "large", "gpt"]
    assert [model["id"] for model in little["data"]] == ["small"]
