"""How a query string asks for a report: its parameters, checked, and its buckets."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from django.http import QueryDict

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.protocol.usage_shapes import CostsQuery, RangeQuery, RecordsQuery, UsageQuery

WIDTHS = {"1m": timedelta(minutes=1), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
USAGE_LIMITS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""Buckets by default, and at most. Source: OpenAI's usage API, as the next."""
COSTS_LIMITS = {"1d": (7, 180)}
_LISTS = ("project_ids", "api_key_ids", "models", "group_by")
_NEVER_COUNTED = {
    "user_ids": "Usage is not counted by user: keys and projects tell who it was.",
    "batch": "There are no batches here.",
    "api_source": "Usage is not counted by its source.",
    "line_items": "A line item is a model: group by 'line_item', or ask for usage with 'models'.",
}
"""Parameters that OpenAI has. Left out silently, the figures would be others than those that were asked for."""

Query = TypeVar("Query", bound=RangeQuery)


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A checked question: what started in [start, end), and whose it is."""

    start: datetime
    end: datetime
    project_ids: tuple[int, ...] | None
    api_key_ids: tuple[int, ...] | None
    models: tuple[str, ...] | None


class Report(Range, frozen=True, kw_only=True):
    """The same in buckets of ``width``, of which ``limit`` fit in the answer."""

    width: timedelta
    limit: int
    group_by: tuple[str, ...]

    @property
    def buckets(self) -> list[datetime]:
        """The beginnings of the buckets in the answer."""
        return list(_beginnings(self.start, min(self.end, self.start + self.limit * self.width), self.width))

    @property
    def next_page(self) -> str | None:
        """Where the next answer begins; None where this one is the last."""
        following = self.start + self.limit * self.width
        return f"page_{int(following.timestamp()):x}" if following < self.end else None


def usage_asked(query: QueryDict, now: datetime) -> Report:
    """Raises InvalidRequest."""
    asked = _decoded(query, UsageQuery)
    return _report(asked, now, USAGE_LIMITS, models=asked.models)


def records_asked(query: QueryDict, now: datetime) -> Range:
    """Raises InvalidRequest: also what only a report has, such as ``limit`` and ``group_by``."""
    asked = _decoded(query, RecordsQuery)
    for name in query:
        if name.removesuffix("[]") not in RecordsQuery.__struct_fields__:
            raise InvalidRequest(f"Unknown parameter: '{name}'. The whole range is told, a line a record.", param=name)
    return Range(
        start=datetime.fromtimestamp(asked.start_time, UTC),
        end=_end(asked, now),
        project_ids=_numbers(asked.project_ids),
        api_key_ids=_numbers(asked.api_key_ids),
        models=None if asked.models is None else tuple(asked.models),
    )


def costs_asked(query: QueryDict, now: datetime) -> Report:
    """Raises InvalidRequest."""
    return _report(_decoded(query, CostsQuery), now, COSTS_LIMITS, models=None)


def _report(asked: Any, now: datetime, limits: Mapping[str, tuple[int, int]], models: list[str] | None) -> Report:
    width = WIDTHS[asked.bucket_width]
    default, most = limits[asked.bucket_width]
    limit = asked.limit or default
    if limit > most:
        raise InvalidRequest(
            f"Invalid value: {limit}; at most {most} buckets of {asked.bucket_width} are told at once.", param="limit"
        )
    end = _end(asked, now)
    start = _floor(datetime.fromtimestamp(asked.start_time, UTC), width)
    return Report(
        start=start if asked.page is None else _page(asked.page, start, width),
        end=end,
        width=width,
        limit=limit,
        project_ids=_numbers(asked.project_ids),
        api_key_ids=_numbers(asked.api_key_ids),
        models=None if models is None else tuple(models),
        group_by=tuple(sorted(set(asked.group_by or ()))),
    )


def _decoded(query: QueryDict, kind: type[Query]) -> Query:
    given: dict[str, Any] = {}
    for name in query:
        plain = name.removesuffix("[]")
        if plain in _NEVER_COUNTED:
            raise InvalidRequest(f"'{plain}' is not supported. {_NEVER_COUNTED[plain]}", param=plain)
        if plain in _LISTS:
            given.setdefault(plain, []).extend(part for value in query.getlist(name) for part in value.split(","))
        else:
            given[plain] = query[name]
    for name in set(given.get("group_by", ())) & {"user_id", "batch", "api_source"}:
        explanation = _NEVER_COUNTED.get(name, _NEVER_COUNTED["user_ids"])
        raise InvalidRequest(f"'group_by' {name} is not supported. {explanation}", param="group_by")
    if "start_time" not in given:
        raise InvalidRequest("Missing required parameter: 'start_time'.", param="start_time")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        problem, _, where = str(exc).partition(" - at `$.")
        raise InvalidRequest(f"Invalid value: {problem}.", param=where.rstrip("`").partition("[")[0] or None) from None


def _end(asked: RangeQuery, now: datetime) -> datetime:
    if asked.end_time is not None and asked.end_time <= asked.start_time:
        raise InvalidRequest("'end_time' must be after 'start_time'.", param="end_time")
    return now if asked.end_time is None else datetime.fromtimestamp(asked.end_time, UTC)


def _numbers(given: list[str] | None) -> tuple[int, ...] | None:
    """Ids as numbers. What is none is nobody's: nothing is found of it."""
    if given is None:
        return None
    return tuple(int(one) for one in given if one.isascii() and one.isdigit() and len(one) < 19 and int(one) > 0)


def _floor(moment: datetime, width: timedelta) -> datetime:
    seconds = int(width.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)


def _page(page: str, start: datetime, width: timedelta) -> datetime:
    """Where the page begins, which is at one of the buckets."""
    try:
        if not page.startswith("page_"):
            raise ValueError(page)
        begins = datetime.fromtimestamp(int(page.removeprefix("page_"), 16), UTC)
    except (ValueError, OverflowError, OSError):
        begins = datetime.min.replace(tzinfo=UTC)
    if begins < start or begins != _floor(begins, width):
        raise InvalidRequest("Invalid value: the page is not a 'next_page' of this question.", param="page")
    return begins


def _beginnings(start: datetime, end: datetime, width: timedelta) -> Iterator[datetime]:
    while start < end:
        yield start
        start += width
