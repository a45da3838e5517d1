import asyncio

import pytest
from django.test import override_settings

from responses_ws.engines.base import EngineError, EngineModel
from responses_ws.engines.registry import EngineRegistry, registry
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.errors import ModelNotFound, Overloaded
from responses_ws.testing import ScriptedEngine

SCRIPTED = "responses_ws.engines.scripted.Scripted"


def configured(models, **engines):
    engines = engines or {"main": {"ENGINE": SCRIPTED}}
    return override_settings(RESPONSES_WS={"ENGINES": engines, "MODELS": models})


class Listing(ScriptedEngine):
    """Lists what it is told to; counts how often it is asked."""

    def __init__(self, *names):
        super().__init__(name="main")
        self.names = list(names)
        self.asked = 0
        self.is_down = False

    async def models(self):
        self.asked += 1
        if self.is_down:
            raise EngineError("unavailable", "down")
        return [EngineModel(id=name) for name in self.names]


@pytest.fixture
async def fresh():
    fresh = EngineRegistry()
    yield fresh
    await fresh.aclose_all()


async def test_a_configured_model_has_a_route_of_its_own(fresh):
    with configured({"mine": {"ENGINE": "main", "UPSTREAM": "theirs"}, "same": {"ENGINE": "main"}}):
        mine = await fresh.resolve("mine")
        same = await fresh.resolve("same")
        again = await fresh.resolve("mine")

    assert (mine.model, mine.upstream, same.upstream) == ("mine", "theirs", "same")
    assert again is mine
    assert isinstance(mine.engine, Scripted) and same.engine is mine.engine


@pytest.mark.parametrize("model", ["other", "*", ""])
async def test_a_model_nobody_serves_is_not_found(fresh, model):
    with configured({"mine": {"ENGINE": "main"}}):
        with pytest.raises(ModelNotFound):
            await fresh.resolve(model)


async def test_the_star_serves_what_its_engine_lists(fresh):
    engine = Listing("a", "b")
    with configured({"mine": {"ENGINE": "main", "UPSTREAM": "a"}, "*": {"ENGINE": "main"}}):
        fresh.install("main", engine)

        routes = await asyncio.gather(*(fresh.resolve("b") for _ in range(10)))
        listed = await fresh.list_models()
        with pytest.raises(ModelNotFound):
            await fresh.resolve("c")

    assert {(route.model, route.upstream) for route in routes} == {("b", "b")}
    assert all(route is routes[0] for route in routes)
    assert listed == [("mine", "main"), ("a", "main"), ("b", "main")]
    assert engine.asked == 1


async def test_an_engine_that_never_answered_is_not_a_missing_model(fresh):
    engine = Listing("a")
    engine.is_down = True
    with configured({"mine": {"ENGINE": "main"}, "*": {"ENGINE": "main"}}):
        fresh.install("main", engine)

        with pytest.raises(Overloaded):
            await fresh.resolve("a")
        with pytest.raises(Overloaded):
            await fresh.resolve("a")
        listed = await fresh.list_models()

    assert listed == [("mine", "main")]
    assert engine.asked == 1


async def test_a_dead_engine_leaves_its_last_list(fresh):
    engine = Listing("a")
    with configured({"*": {"ENGINE": "main"}}):
        fresh.install("main", engine)
        before = await fresh.resolve("a")
        engine.is_down = True
        fresh.expire("main")

        during = await fresh.resolve("a")
        await asyncio.sleep(0)
        after = await fresh.resolve("a")

    assert before is during is after
    assert engine.asked == 2


async def test_a_stale_list_is_refreshed_beside_the_request(fresh):
    engine = Listing("a")
    with configured({"*": {"ENGINE": "main"}}):
        fresh.install("main", engine)
        await fresh.resolve("a")
        engine.names.append("b")
        fresh.expire("main")

        with pytest.raises(ModelNotFound):
            await fresh.resolve("b")
        await asyncio.sleep(0)
        found = await fresh.resolve("b")

    assert found.upstream == "b"


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"ENGINE": "responses_ws.engines.nothing.Engine"}, "cannot import"),
        ({"ENGINE": "responses_ws.protocol.usage.Usage"}, "is not an Engine"),
        ({}, "dotted path"),
        ({"ENGINE": SCRIPTED, "RAET": 1}, "RAET"),
    ],
    ids=["import", "no-engine", "no-path", "option"],
)
async def test_a_wrong_setting_is_named(fresh, entry, named):
    with configured({"mine": {"ENGINE": "main"}}, main=entry):
        with pytest.raises(ValueError, match=named):
            await fresh.resolve("mine")


async def test_an_engine_without_settings_is_named(fresh):
    with configured({"mine": {"ENGINE": "nowhere"}}):
        with pytest.raises(ValueError, match="nowhere"):
            await fresh.resolve("mine")


async def test_new_settings_are_seen():
    with configured({"a": {"ENGINE": "main"}}):
        await registry.resolve("a")
    with configured({"b": {"ENGINE": "main"}}):
        with pytest.raises(ModelNotFound):
            await registry.resolve("a")
        route = await registry.resolve("b")

    assert route.upstream == "b"


def test_a_registry_outlives_its_loop():
    fresh = EngineRegistry()
    with configured({"*": {"ENGINE": "main"}}):
        first = asyncio.run(fresh.resolve("scripted"))
        fresh.expire("main")
        second = asyncio.run(fresh.resolve("scripted"))
        third = asyncio.run(fresh.resolve("scripted"))

    assert first is second is third
