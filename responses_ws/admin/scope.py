"""What a page of figures is about: a time and an owner, as they stand in its URL, so that a link shows the same."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.db.models import Count
from django.utils import timezone

from responses_ws.models import ApiKey, Organization, Project
from responses_ws.models.rollups import RollupQuerySet

PERIODS = {
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "90d": "Last 90 days",
    "month": "This month",
    "last_month": "Last month",
}
DEFAULT_PERIOD = "30d"
MOST_DAYS = 400
"""Of a period that the URL says in days: more bars than anybody can tell apart."""
DAY = timedelta(days=1)


class Period(msgspec.Struct, frozen=True):
    """[start, end) in steps of an hour or a day of UTC, as the roll-ups are."""

    name: str
    """A key of `PERIODS`, or empty: the days say it."""
    start: datetime
    end: datetime
    is_hourly: bool = False

    @property
    def title(self) -> str:
        last = self.end - DAY
        return PERIODS.get(self.name) or f"{_day(self.start)} to {_day(last)}"

    @property
    def step(self) -> timedelta:
        return timedelta(hours=1) if self.is_hourly else DAY

    def starts(self) -> list[datetime]:
        """The beginnings of its hours or days."""
        return [self.start + self.step * number for number in range((self.end - self.start) // self.step)]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A period, and what is left of all usage when the narrowest of organisation, project and key is named."""

    period: Period
    organization: Organization | None = None
    project: Project | None = None
    api_key: ApiKey | None = None
    is_keyless: bool = False
    """Only what was asked for without a key."""
    model: str = ""
    currency: str = "USD"
    currencies: tuple[str, ...] = ()
    """Of all organisations, the most frequent first; only money of one can be added up."""
    notes: tuple[str, ...] = ()
    """What the URL asks for and there is not."""

    def of(self, rows: RollupQuerySet) -> Any:
        """The rows that belong to it, of any time."""
        if self.organization is None and len(self.currencies) > 1:
            owners = Organization.objects.filter(currency=self.currency).values("pk")
            rows = rows.filter(organization_id__in=owners)
        return rows.narrowed(
            organization_id=self.organization.pk if self.organization and not self.project else None,
            project_id=self.project.pk if self.project and not self.api_key else None,
            api_key_id=self.api_key.pk if self.api_key else 0 if self.is_keyless else None,
            model=self.model,
        )

    def within(self, rows: RollupQuerySet) -> Any:
        """The rows of its hours or days."""
        rows = rows.hours() if self.period.is_hourly else rows.days()
        return self.of(rows.between(self.period.start, self.period.end))

    def records(self, records: Any) -> Any:
        """The usage records that belong to it, of any time."""
        wanted: dict[str, Any] = {}
        if self.api_key is not None:
            wanted["api_key"] = self.api_key
        elif self.project is not None:
            wanted["project"] = self.project
            if self.is_keyless:
                wanted["api_key"] = None
        elif self.organization is not None:
            wanted["organization"] = self.organization
        if self.model:
            wanted["model"] = self.model
        return records.filter(**wanted)

    @property
    def query(self) -> dict[str, str]:
        """It as the parameters of a URL, without what goes without saying."""
        period = self.period
        given = {
            "period": "" if period.name == DEFAULT_PERIOD else period.name,
            "from": "" if period.name else f"{period.start:%Y-%m-%d}",
            "to": "" if period.name else f"{period.end - DAY:%Y-%m-%d}",
            "organization": str(self.organization.pk) if self.organization and not self.project else "",
            "project": str(self.project.pk) if self.project and not self.api_key else "",
            "key": str(self.api_key.pk) if self.api_key else "none" if self.is_keyless else "",
            "model": self.model,
            "currency": self.currency if len(self.currencies) > 1 and self.organization is None else "",
        }
        return {name: value for name, value in given.items() if value}

    def url(self, **changes: Any) -> str:
        """The page with other parameters; empty ones are left out."""
        query = {**self.query, **changes}
        if {"organization", "project", "key"} & changes.keys():
            # One owner at a time: the narrowest says who the others are, but for "no key" of a project.
            owners = {"organization", "project", "key"} - changes.keys()
            query = {name: value for name, value in query.items() if name not in owners}
        return "?" + urlencode({name: value for name, value in query.items() if value not in ("", None)})


def scope_of(given: Mapping[str, str], now: datetime | None = None) -> Scope:
    """What a URL asks for. What makes no sense is told in ``notes`` and left out: a page of figures always opens."""
    notes: list[str] = []
    period = period_of(given, now or timezone.now(), notes)
    owner = _owner(given, notes)
    counts = Organization.objects.values("currency").annotate(organizations=Count("pk"))
    currencies = tuple(counts.order_by("-organizations", "currency").values_list("currency", flat=True))
    if owner.get("organization") is not None:
        currency = owner["organization"].currency
    else:
        currency = given.get("currency", "") or (currencies or ("USD",))[0]
        if currencies and currency not in currencies:
            notes.append(f"No organisation is billed in {currency!r}: {currencies[0]} is shown.")
            currency = currencies[0]
    model = given.get("model", "").strip()
    return Scope(period=period, **owner, model=model, currency=currency, currencies=currencies, notes=tuple(notes))


def period_of(given: Mapping[str, str], now: datetime, notes: list[str]) -> Period:
    now = now.astimezone(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0)
    tomorrow = hour.replace(hour=0) + DAY
    if given.get("from") or given.get("to"):
        try:
            return _days(given, tomorrow)
        except ValueError as exc:
            notes.append(f"{exc}: {PERIODS[DEFAULT_PERIOD].lower()} are shown.")
            return Period(DEFAULT_PERIOD, tomorrow - 30 * DAY, tomorrow)
    name = given.get("period", "") or DEFAULT_PERIOD
    if name not in PERIODS:
        notes.append(f"There is no period {name!r}: {PERIODS[DEFAULT_PERIOD].lower()} are shown.")
        name = DEFAULT_PERIOD
    month = hour.replace(day=1, hour=0)
    if name == "24h":
        end = hour + timedelta(hours=1)
        return Period(name, end - DAY, end, is_hourly=True)
    if name == "month":
        return Period(name, month, tomorrow)
    if name == "last_month":
        return Period(name, (month - DAY).replace(day=1), month)
    return Period(name, tomorrow - int(name[:-1]) * DAY, tomorrow)


def _days(given: Mapping[str, str], tomorrow: datetime) -> Period:
    """From one day to another, both part of it; what is missing is today."""
    today = (tomorrow - DAY).date()
    first, last = (_date(given.get(name, ""), today) for name in ("from", "to"))
    if last < first:
        raise ValueError(f"{last} is before {first}")
    if (last - first).days >= MOST_DAYS:
        raise ValueError(f"From {first} to {last} are more than {MOST_DAYS} days")
    start, end = (datetime(one.year, one.month, one.day, tzinfo=UTC) for one in (first, last))
    return Period("", start, end + DAY)


def _date(text: str, default: date) -> date:
    if not text:
        return default
    try:
        found = date.fromisoformat(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} is no day such as {default}") from exc
    if not 1 < found.year < 9999:
        raise ValueError(f"{text!r} is no day that can be shown")
    return found


def _owner(given: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """The narrowest of key, project and organisation, with what it belongs to."""
    key, project, organization = (
        _found(model, given.get(name, ""), name, notes)
        for model, name in (
            (ApiKey.objects.select_related("project__organization"), "key"),
            (Project.objects.select_related("organization"), "project"),
            (Organization.objects.all(), "organization"),
        )
    )
    # Somebody who changes the organisation in the form means it, whatever project was chosen before.
    if project is not None and organization is not None and project.organization_id != organization.pk:
        project = None
    if key is not None and (
        (project is not None and key.project_id != project.pk)
        or (organization is not None and key.project.organization_id != organization.pk)
    ):
        key = None
    if key is not None:
        return {"api_key": key, "project": key.project, "organization": key.project.organization}
    if project is not None:
        is_keyless = given.get("key") == "none"
        return {"project": project, "organization": project.organization, "is_keyless": is_keyless}
    return {"organization": organization}


def _found(rows: Any, given: str, what: str, notes: list[str]) -> Any:
    if not given or (what == "key" and given == "none"):
        return None
    # Longer than any number of a row, and SQLite would refuse it.
    found = rows.filter(pk=int(given)).first() if given.isdecimal() and len(given) < 19 else None
    if found is None:
        notes.append(f"There is no {what} {given!r}: all are shown.")
    return found


def _day(moment: datetime) -> str:
    return f"{moment.day} {moment:%b %Y}"
