"""What this process has counted since it began, and how Prometheus reads it.

An event costs an addition under a tuple of label values. Everything is counted on the event loop, so there are no
locks; and once a turn or once a call, never once a token.

Source: Prometheus' text exposition format 0.0.4; OpenTelemetry's GenAI metrics, for the names and buckets of times.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from responses_ws.protocol.usage import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Values = tuple[str, ...]
"""The values of a metric's labels, in their order."""

Sample = tuple[Values, float]

_ALL: list["Counter | Histogram"] = []


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
    """What is so right now: made when it is asked for."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Values = (), samples: Iterable[Sample] = ()) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.samples = samples

    def lines(self, process: str) -> Iterator[str]:
        for values, value in self.samples:
            yield _line(self.name, self.labels, values, value, process)


_MODEL = ("gen_ai_request_model", "gen_ai_operation_name")
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

duration = Histogram(
    "gen_ai_server_request_duration_seconds", "From a turn's request to its end, whatever that was.", _MODEL, _SECONDS
)
first_token = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "From a turn's request to the first output that left us.",
    _MODEL,
    _FIRST_SECONDS,
)
turns = Counter("responses_ws_turns_total", "Turns that have ended.", ("transport", "model", "status"))
refused = Counter(
    "responses_ws_turns_refused_total", "Turns refused before anything was made or recorded.", ("transport", "code")
)
handshakes_refused = Counter("responses_ws_handshakes_refused_total", "Sockets that were refused.", ("code",))
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
engine_failures = Counter("responses_ws_engine_failures_total", "Calls that an engine has failed.", ("engine", "kind"))


def turn_ended(
    *, transport: str, model: str, status: str, usage: Usage, seconds: float, first_token_ms: float | None
) -> None:
    """A turn's usage record is being closed."""
    of_model = (model, "chat")
    turns.add((transport, model, status))
    duration.observe(of_model, seconds)
    if first_token_ms is not None:
        first_token.observe(of_model, first_token_ms / 1000)
    tokens.add((model, "input"), usage.input_tokens)
    tokens.add((model, "cached"), usage.cached_tokens)
    tokens.add((model, "output"), usage.output_tokens)
    tokens.add((model, "reasoning"), usage.reasoning_tokens)


def step_rendered(model: str, path: str, count: int) -> None:
    """A sampling step's prompt was made by this path; so many of its ids are new."""
    render_steps.add((model, path))
    rendered_tokens.add((model, path), count)


def exposition(gauges: Iterable[Gauge]) -> str:
    """Everything counted, and these, as Prometheus reads it. Every sample says which process it is of."""
    process = str(os.getpid())
    lines: list[str] = []
    for metric in (*_ALL, *gauges):
        lines += (f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}")
        lines += metric.lines(process)
    return "\n".join(lines) + "\n"


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
