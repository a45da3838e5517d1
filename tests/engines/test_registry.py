import asyncio

import hypothesis
import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from responses_ws.engines.base import EngineError, EngineModel
from responses_ws.engines.registry import EngineRegistry, registry
from responses_ws.engines.scripted import Scripted
from responses_ws.protocol.errors import ModelNotFound, Overloaded
from responses_ws.testing import ScriptedEngine
from tests.serving.bytes_model import BytesEngine, BytesRenderer
from tests.waiting import until

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


class Wrong(Listing):
    """Breaks its contract."""

    async def models(self):
        self.asked += 1
        raise KeyError("data")

    async def health(self):
        raise KeyError("status")


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


def replicated(**weights):
    """The model ``m``, answered by the engines of these names."""
    engines = {name: {"ENGINE": SCRIPTED} for name in weights}
    entries = [{"ENGINE": name, "WEIGHT": weight} for name, weight in weights.items()]
    return configured({"m": {"REPLICAS": entries}}, **engines)


async def test_replicas_have_names_and_weights_of_their_own(fresh):
    entries = [{"ENGINE": "main", "WEIGHT": 2}, {"ENGINE": "main", "UPSTREAM": "theirs"}]
    with configured({"m": {"REPLICAS": entries, "UPSTREAM": "ours", "CONTEXT": 100}}):
        route = await fresh.resolve("m")

    assert [(one.model, one.upstream, one.weight, one.context_tokens) for one in route.replicas] == [
        ("m", "ours", 2, 100),
        ("m", "theirs", 1, 100),
    ]


@pytest.mark.parametrize(
    ("running", "chosen"),
    [
        ({"a": 0, "b": 0}, "draw"),
        ({"a": 1, "b": 0}, "b"),
        ({"a": 1, "b": 2}, "b"),
        ({"a": 2, "b": 5}, "b"),
        ({"a": 2, "b": 6}, "draw"),
        ({"a": 2, "b": 7}, "a"),
        ({"a": 3, "b": 8}, "b"),
    ],
)
async def test_a_new_chain_goes_where_least_is_done_for_the_weight(running, chosen):
    fresh = EngineRegistry(chance=lambda: 0.5)
    with replicated(a=1, b=3):
        for name, calls in running.items():
            for _ in range(calls):
                await fresh.station(name).slots.take(name)

        route = await fresh.resolve("m")

    # Of equals: 0.5 to the power of 1/3 is more than 0.5.
    assert route.engine.name == ("b" if chosen == "draw" else chosen)
    await fresh.aclose_all()


@hypothesis.settings(max_examples=25)
@given(
    weights=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    calls=st.lists(st.floats(0, 1, exclude_max=True), min_size=20, max_size=20),
)
def test_no_replica_is_further_behind_than_one_call(weights, calls):
    draws = iter(calls * len(weights))
    fresh = EngineRegistry(chance=lambda: next(draws))
    names = {f"e{number}": weight for number, weight in enumerate(weights)}

    async def story():
        for _ in calls:
            route = await fresh.resolve("m")
            await route.station.slots.take("anyone")
        loads = [one.load for one in route.replicas]
        # Each was given a call only while nobody had less to do.
        assert all(one.load - 1 / one.weight <= min(loads) + 1e-9 for one in route.replicas)

    with replicated(**names):
        asyncio.run(story())


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 1, "b": 3}], ids=["alike", "unlike"])
async def test_what_begins_alike_goes_to_one_replica_in_all_processes(weights):
    keys = [f"key {number}" for number in range(200)]
    with replicated(**weights):
        chosen = []
        for chance in (0.1, 0.9):
            process = EngineRegistry(chance=lambda chance=chance: chance)
            chosen.append([(await process.resolve("m", key=key)).engine.name for key in keys])

    assert chosen[0] == chosen[1]
    share = chosen[0].count("a") / len(keys)
    assert abs(share - weights["a"] / sum(weights.values())) < 0.1


async def test_a_beginning_is_not_waited_for_behind_much_else(fresh):
    with replicated(a=1, b=1):
        favourite = await fresh.resolve("m", key="key")
        for _ in range(3):
            await favourite.station.slots.take("anyone")
        soon = await fresh.resolve("m", key="key")
        await favourite.station.slots.take("anyone")
        too_late = await fresh.resolve("m", key="key")

    assert soon is favourite
    assert too_late is not favourite


async def test_a_chain_keeps_its_replica_while_that_is_well(fresh):
    with replicated(a=1, b=1):
        route = await fresh.resolve("m")
        other = next(one for one in route.replicas if one is not route)
        for _ in range(5):
            await route.station.slots.take("anyone")
        before = fresh.candidates(route)

        route.station.failed(EngineError("overloaded", "full"), has_spoken=False)

        assert before == [route, other]
        assert fresh.candidates(route) == [other, route]


async def test_a_replica_that_is_down_is_no_candidate(fresh):
    with replicated(a=1, b=1):
        route = await fresh.resolve("m")
        other = next(one for one in route.replicas if one is not route)
        for one in route.replicas:
            await one.station.slots.take("anyone")

        route.station.failed(EngineError("unavailable", "gone"), has_spoken=False)
        left = fresh.candidates(route)
        other.station.failed(EngineError("unavailable", "gone"), has_spoken=False)

        assert left == [other]
        assert fresh.candidates(route) == []
        assert (await fresh.resolve("m")).station.refusal().kind == "unavailable"


async def test_an_engine_is_probed_by_one_task_however_many_ask_for_it(fresh):
    engine = Listing("m")
    engine.is_down = True
    with configured({"m": {"ENGINE": "main", "CONTEXT": 1}}):
        fresh.install("main", engine)
        route = await fresh.resolve("m")
        route.station.failed(EngineError("unavailable", "gone"), has_spoken=False)

        for _ in range(100):
            assert fresh.candidates(route) == []
        await until(lambda: engine.asked == 1, "a probe in vain")
        asked = engine.asked
        engine.is_down = False
        await until(lambda: fresh.candidates(route), "a probe that finds it well")

    assert (asked, engine.asked) == (1, 2)


async def test_an_alias_is_its_model(fresh):
    with configured({"mine": {"ENGINE": "main", "UPSTREAM": "a"}, "gpt": {"ALIAS": "mine"}, "lost": {"ALIAS": "x"}}):
        mine = await fresh.resolve("mine")
        gpt = await fresh.resolve("gpt")
        listed = await fresh.list_models()
        with pytest.raises(ModelNotFound):
            await fresh.resolve("lost")

    assert gpt is mine
    assert listed == [("mine", "main"), ("gpt", "main")]


async def test_an_alias_may_lead_to_what_an_engine_lists(fresh):
    with configured({"gpt": {"ALIAS": "b"}, "*": {"ENGINE": "main"}}):
        fresh.install("main", Listing("a", "b"))
        route = await fresh.resolve("gpt")
        listed = await fresh.list_models()

    assert (route.model, route.upstream) == ("b", "b")
    assert ("gpt", "main") in listed


async def test_new_settings_make_a_kept_route_stale():
    with replicated(a=1, b=1):
        route = await registry.resolve("m")
        assert not route.is_stale
    assert all(one.is_stale for one in route.replicas)


class Telling(Listing):
    """Tells how much its models can read and write, too."""

    async def models(self):
        return [EngineModel(id=model.id, context_tokens=1000 + len(model.id)) for model in await super().models()]


async def test_what_the_settings_do_not_say_of_a_context_its_engine_does(fresh):
    engine = Telling("theirs", "same")
    models = {
        "mine": {"ENGINE": "main", "UPSTREAM": "theirs"},
        "same": {"ENGINE": "main"},
        "said": {"ENGINE": "main", "UPSTREAM": "theirs", "CONTEXT": 7},
        "unlisted": {"ENGINE": "main"},
    }
    with configured(models):
        fresh.install("main", engine)
        at_first = await fresh.resolve("mine")
        assert at_first.context_tokens is None
        await asyncio.sleep(0)
        contexts = {name: (await fresh.resolve(name)).context_tokens for name in models}

    assert contexts == {"mine": 1006, "same": 1004, "said": 7, "unlisted": None}
    # The same route: chains that have begun learn of it, too.
    assert at_first.context_tokens == 1006
    assert engine.asked == 1


async def test_an_engine_that_does_not_list_is_not_asked_again_and_again(fresh):
    engine = Telling("theirs")
    engine.is_down = True
    with configured({"theirs": {"ENGINE": "main"}}):
        fresh.install("main", engine)
        for _ in range(10):
            await fresh.resolve("theirs")
            await asyncio.sleep(0)

    assert engine.asked == 1


async def test_an_engine_that_breaks_its_contract_is_one_that_does_not_answer(fresh, caplog):
    engine = Wrong()
    with configured({"m": {"ENGINE": "main"}, "*": {"ENGINE": "main"}}):
        fresh.install("main", engine)
        route = await fresh.resolve("m")
        with pytest.raises(Overloaded):
            await fresh.resolve("listed, perhaps")
        route.station.failed(EngineError("unavailable", "gone"), has_spoken=False)
        await until(lambda: route.station.condition.failures == 2, "a probe in vain")

    assert engine.asked == 1
    assert fresh.candidates(route) == []
    assert "KeyError" in caplog.text


async def test_a_listed_model_is_asked_as_its_engine_knows_best(fresh):
    with configured({"*": {"ENGINE": "main"}}):
        fresh.install("main", BytesEngine())
        route = await fresh.resolve("bytes")

    assert isinstance(route.renderer, BytesRenderer)
    assert route.capabilities.tools
