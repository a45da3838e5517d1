"""What is counted, as Prometheus' own parser reads it."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from responses_ws.runtime import metrics
from responses_ws.runtime.metrics import Counter, Gauge, Histogram


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(metrics, "_ALL", [])
    yield


def samples(*gauges: Gauge) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels, ``process`` left out."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(metrics.exposition(metrics.families(gauges))):
        for sample in family.samples:
            assert sample.labels.pop("process").isdigit()
            found.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    return found


def test_a_counter_adds_up_under_each_combination_of_values() -> None:
    counter = Counter("made_total", "Made.", ("model", "kind"))

    counter.add(("m", "a"))
    counter.add(("m", "a"), 41)
    counter.add(("m", "b"), 0.5)

    expected = {(("model", "m"), ("kind", "a")): 42, (("model", "m"), ("kind", "b")): 0.5}
    assert samples() == {"made_total": expected}
    assert (counter.value("m", "a"), counter.value("x", "a")) == (42, 0)


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "two\nlines", "a,b={c}", "Größe", "\\n"])
def test_any_name_of_a_model_is_read_back(name: str) -> None:
    Counter("made_total", "Made.", ("model",)).add((name,))

    assert samples() == {"made_total": {(("model", name),): 1}}


def test_a_histogram_counts_up_to_each_bound_and_includes_it() -> None:
    histogram = Histogram("took_seconds", "Took.", ("model",), (0.5, 1.0))

    for seconds in (0.25, 0.5, 0.75, 2.0):
        histogram.observe(("m",), seconds)

    found = samples()
    counts = {dict(labels)["le"]: value for labels, value in found["took_seconds_bucket"].items()}
    assert counts == {"0.5": 2, "1": 3, "+Inf": 4}
    assert found["took_seconds_sum"] == {(("model", "m"),): 3.5}
    assert found["took_seconds_count"] == {(("model", "m"),): 4}


def test_a_gauge_is_what_it_is_told() -> None:
    assert samples(Gauge("open_now", "Open.", samples=[((), 3)])) == {"open_now": {(): 3}}


def test_what_several_processes_tell_stands_together() -> None:
    counter = Counter("made_total", "Made.", ())
    counter.add(())
    here = metrics.families([Gauge("open_now", "Open.", samples=[((), 3)])])
    there = [metrics.Family("made_total", "counter", "Made.", ['made_total{process="other"} 2'])]

    text = metrics.exposition(here, there)

    (made, opened) = text_string_to_metric_families(text)
    assert [(sample.labels["process"] == "other", sample.value) for sample in made.samples] == [(False, 1), (True, 2)]
    assert [sample.value for sample in opened.samples] == [3]
    assert text.count("# TYPE made_total counter") == 1
