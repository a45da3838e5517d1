"""What this process has counted since it began, and how Prometheus reads it.

An event costs an addition under a tuple of label values. Everything is counted on the event loop, so there are no
locks; and once a turn or once a call, never once a token.

Source: Prometheus' text exposition format 0.0.4; OpenTelemetry's GenAI metrics, for the names and buckets of times
and tokens.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from responses_ws.protocol.usage import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Values = tuple[str, ...]
"""The values of a metric's labels, in their order."""

Sample = tuple[Values, float]

_ALL: list["Counter | Histogram"] = []
_SAMPLE = re.compile(r'\w+\{\w+="([^"]*)".*\} (\S+)')


class Counter:
    """A number that only grows, one for each combination of label values."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Values) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self._values: dict[Values, float] = {}
        _ALL.append(self)

    def add(self, values: Values, amount: float = 1) -> None:
        self._values[values] = self._values.get(values, 0) + amount

    def value(self, *values: str) -> float:
        """What has been counted under these; 0 without anything."""
        return self._values.get(values, 0)

    def lines(self, process: str) -> Iterator[str]:
        for values, value in list(self._values.items()):
            yield _line(self.name, self.labels, values, value, process)

    def clear(self) -> None:
        self._values.clear()


class Histogram:
    """How many values lie at or below each bound, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Values, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.bounds = bounds
        self._series: dict[Values, list[float]] = {}
        """Per combination the count between every two bounds, that above the last, and the sum."""
        _ALL.append(self)

    def observe(self, values: Values, value: float) -> None:
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = [0] * (len(self.bounds) + 2)
        series[bisect_left(self.bounds, value)] += 1
        series[-1] += value

    def lines(self, process: str) -> Iterator[str]:
        for values, series in list(self._series.items()):
            count = 0.0
            for bound, within in zip((*map(_number, self.bounds), "+Inf"), series, strict=False):
                count += within
                yield _line(f"{self.name}_bucket", (*self.labels, "le"), (*values, bound), count, process)
            yield _line(f"{self.name}_sum", self.labels, values, series[-1], process)
            yield _line(f"{self.name}_count", self.labels, values, count, process)

    def clear(self) -> None:
        self._series.clear()


class Gauge:
    """What is so right now: made when it is asked for. Of ``kind`` "counter" where somebody else counts."""

    def __init__(
        self, name: str, text: str, labels: Values = (), samples: Iterable[Sample] = (), *, kind: str = "gauge"
    ) -> None:
        self.kind = kind
        self.name = name
        self.text = text
        self.labels = labels
        self.samples = samples

    def lines(self, process: str) -> Iterator[str]:
        for values, value in self.samples:
            yield _line(self.name, self.labels, values, value, process)


class Family(msgspec.Struct, frozen=True):
    """One metric as a process tells it."""

    name: str
    kind: str
    text: str
    lines: list[str]


_MODEL = ("gen_ai_request_model", "gen_ai_operation_name", "transport")
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4.0**power for power in range(14))
_PHASE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

duration = Histogram(
    "gen_ai_server_request_duration_seconds", "From a turn's request to its end, whatever that was.", _MODEL, _SECONDS
)
first_token = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From a turn's request to the first output that left us.",
    _MODEL,
    _FIRST_SECONDS,
)
per_token = Histogram(
    "gen_ai_server_time_per_output_token_seconds",
    "Of completed turns: from the first output to the end, for each token behind the first.",
    _MODEL,
    _TOKEN_SECONDS,
)
token_usage = Histogram(
    "gen_ai_client_token_usage", "Tokens of each turn that has ended.", (*_MODEL, "gen_ai_token_type"), _TOKENS
)
turn_phases = Histogram(
    "responses_ws_turn_phase_seconds",
    "Where turns' time goes. Checks, render, first_token and rest add up to a turn's duration; then it is settled: "
    "its record and what is stored of it become durable, before its client is told of its end.",
    ("phase",),
    _PHASE_SECONDS,
)
turns = Counter("responses_ws_turns_total", "Turns that have ended.", ("transport", "model", "status"))
estimated = Counter(
    "responses_ws_turns_estimated_total",
    "Turns whose tokens we had to count, at least in part: an engine has told nothing of them.",
    ("model", "status"),
)
refused = Counter(
    "responses_ws_turns_refused_total", "Turns refused before anything was made or recorded.", ("transport", "code")
)
peers_cut = Counter("responses_ws_peers_cut_total", "Connections ended for what their peer did or left.", ("reason",))
handshakes_refused = Counter(
    "responses_ws_handshakes_refused_total",
    "Sockets that were refused; with the project's id where its key was looked at and is good.",
    ("code", "project"),
)
sockets_opened = Counter("responses_ws_sockets_opened_total", "Sockets that were let in.", ())
tokens = Counter(
    "responses_ws_tokens_total",
    "Tokens of the turns that have ended. Cached ones are also input, reasoning ones also output.",
    ("model", "kind"),
)
render_steps = Counter(
    "responses_ws_render_steps_total",
    "Sampling steps asked in token ids, by how the prompt was made.",
    ("model", "path"),
)
rendered_tokens = Counter(
    "responses_ws_rendered_tokens_total", "Token ids made for those; the rest was there already.", ("model", "path")
)
lookups = Counter("responses_ws_chain_lookups_total", "Where the response was found that a turn continues.", ("tier",))
redis_failures = Counter("responses_ws_redis_failures_total", "Calls of Redis that were misses for it.", ("kind",))
budget_refusals = Counter(
    "responses_ws_budget_refusals_total",
    "Engine calls that a budget did not cover, of turns that were to begin and of those that were to go on.",
    ("window", "moment"),
)
budgets_without_redis = Counter(
    "responses_ws_budgets_without_redis_total", "Turns with a budget for which Redis could not count.", ("policy",)
)
engine_failures = Counter("responses_ws_engine_failures_total", "Calls that an engine has failed.", ("engine", "kind"))
loop_lag = Histogram(
    "responses_ws_loop_lag_seconds", "How late the event loop came to a timer, four times a second.", (), _LAG_SECONDS
)


def turn_ended(
    *,
    transport: str,
    model: str,
    status: str,
    usage: Usage,
    seconds: float,
    first_token_ms: float | None,
    phases: Mapping[str, float],
) -> None:
    """A turn's usage record has been closed. ``phases``: the milliseconds of each part of it."""
    of_model = (model, "chat", transport)
    turns.add((transport, model, status))
    if usage.estimated:
        estimated.add((model, status))
    duration.observe(of_model, seconds)
    if first_token_ms is not None:
        first_token.observe(of_model, first_token_ms / 1000)
        if status == "completed" and usage.output_tokens > 1:
            per_token.observe(of_model, (seconds - first_token_ms / 1000) / (usage.output_tokens - 1))
    for phase, milliseconds in phases.items():
        turn_phases.observe((phase,), milliseconds / 1000)
    token_usage.observe((*of_model, "input"), usage.input_tokens)
    token_usage.observe((*of_model, "output"), usage.output_tokens)
    tokens.add((model, "input"), usage.input_tokens)
    tokens.add((model, "cached"), usage.cached_tokens)
    tokens.add((model, "output"), usage.output_tokens)
    tokens.add((model, "reasoning"), usage.reasoning_tokens)


def step_rendered(model: str, path: str, count: int) -> None:
    """A sampling step's prompt was made by this path; so many of its ids are new."""
    render_steps.add((model, path))
    rendered_tokens.add((model, path), count)


def families(gauges: Iterable[Gauge]) -> list[Family]:
    """Everything counted here, and these. Every sample says which process it is of."""
    process = str(os.getpid())
    return [Family(one.name, one.kind, one.text, list(one.lines(process))) for one in (*_ALL, *gauges)]


def exposition(*told: Iterable[Family]) -> str:
    """What processes have told, as Prometheus reads it: all samples of a metric in one place."""
    merged: dict[str, Family] = {}
    for family in chain.from_iterable(told):
        known = merged.setdefault(family.name, Family(family.name, family.kind, family.text, []))
        known.lines.extend(family.lines)
    lines: list[str] = []
    for family in merged.values():
        lines += (f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}", *family.lines)
    return "\n".join(lines) + "\n"


def sums(told: Iterable[Family], name: str) -> dict[str, float]:
    """The samples of one metric added up by the value of their first label."""
    found: dict[str, float] = {}
    for line in chain.from_iterable(family.lines for family in told if family.name == name):
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, "lines are made by `_line`"
        found[sample[1]] = found.get(sample[1], 0) + float(sample[2])
    return found


def means(told: Iterable[Family], name: str) -> dict[str, float]:
    """The mean of what a histogram of one label has seen, by the value of that label."""
    totals: dict[str, dict[str, float]] = {"sum": {}, "count": {}}
    for line in chain.from_iterable(family.lines for family in told if family.name == name):
        part = line.removeprefix(f"{name}_").partition("{")[0]
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, "lines are made by `_line`"
        if part in totals:
            totals[part][sample[1]] = totals[part].get(sample[1], 0) + float(sample[2])
    return {value: totals["sum"][value] / count for value, count in totals["count"].items() if count}


def clear() -> None:
    """Count from nothing again."""
    for metric in _ALL:
        metric.clear()


def _line(name: str, labels: Values, values: Values, value: float, process: str) -> str:
    pairs = zip((*labels, "process"), (*values, process), strict=True)
    return f"{name}{{{','.join(f'{label}={_quoted(of)}' for label, of in pairs)}}} {_number(value)}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'"{escaped}"'


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
