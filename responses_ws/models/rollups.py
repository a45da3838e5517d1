"""Usage added up by the hour and by the day, so that a page of figures costs the same at any number of responses."""

from typing import Any

from django.db import models

BOUNDS_MS = tuple(round(5 * 1.5**number, 1) for number in range(23))
"""Upper bounds of all buckets of a histogram but the last, in milliseconds: 5, 7.5, …, 37,407. Each is 1.5 times the
one before: a percentile read off them is right within a quarter, and histograms of any rows can be added."""

FIRST_TOKEN = tuple(f"first_token_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by the time to their first token."""
DURATION = tuple(f"duration_{number:02}" for number in range(len(BOUNDS_MS) + 1))
"""The columns that count responses by how long they took."""

DIMENSIONS = ("width", "start", "organization_id", "project_id", "api_key_id", "model", "service_tier", "transport")
"""What tells rows apart."""


def _count() -> Any:
    return models.BigIntegerField(default=0)


class UsageRollup(models.Model):
    """Sums of billed usage records that started in [start, start + width), by who asked for what and how.

    Days are those of UTC. Added to in the transaction that bills, so that rows and ledger say the same. What a
    correction takes back is taken from the row where it was. No foreign keys: rows are found by their numbers, and 0
    stands for no key.
    """

    class Width(models.TextChoices):
        HOUR = "hour", "hour"
        DAY = "day", "day"

    width = models.CharField(max_length=4, choices=Width.choices)
    start = models.DateTimeField()
    organization_id = models.BigIntegerField()
    project_id = models.BigIntegerField()
    api_key_id = models.BigIntegerField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=20)
    transport = models.CharField(max_length=10)

    responses = _count()
    completed = _count()
    incomplete = _count()
    failed = _count()
    cancelled = _count()
    abandoned = _count()
    estimated = _count()
    input_tokens = _count()
    cached_tokens = _count()
    cache_write_tokens = _count()
    output_tokens = _count()
    reasoning_tokens = _count()
    tool_calls = _count()
    amount_nano = _count()
    """What was charged, before credit, in nano units of the organisation's currency."""
    timed = _count()
    """Responses whose times are in the sums below."""
    checks_ms = models.FloatField(default=0)
    render_ms = models.FloatField(default=0)
    first_token_ms = models.FloatField(default=0)
    duration_ms = models.FloatField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=DIMENSIONS, name="responses_ws_rollup_once")]
        indexes = [
            models.Index(fields=("width", "organization_id", "start"), name="responses_ws_rollup_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.width} {self.start:%Y-%m-%d %H} {self.model}"


for _name in (*FIRST_TOKEN, *DURATION):
    UsageRollup.add_to_class(_name, _count())
