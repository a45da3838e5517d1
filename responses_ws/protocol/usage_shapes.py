"""What the usage API is asked, and what it answers.

Source: OpenAI's ``/organization/usage/completions`` and ``/organization/costs``.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .object_shapes import TokenCount, UnixSeconds

LATEST = 4_102_444_800
"""1 January 2100: the last moment that a report may begin at."""

Width = Literal["1m", "1h", "1d"]
PageAnchor = Annotated[str, Meta(max_length=64)]


class RangeQuery(Struct, kw_only=True):
    """Which usage. Lists are given as ``name``, ``name[]``, once a value."""

    start_time: Annotated[int, Meta(ge=0, le=LATEST)]
    """Unix seconds. The first bucket is the one that holds this moment; of single records, the first moment."""
    end_time: Annotated[int, Meta(ge=0, le=LATEST)] | None = None
    """Unix seconds; the last bucket is the one before which, or in which, this moment is; of single records, the first
    moment after them. Left out: now."""
    project_ids: list[str] | None = None
    """Only of these projects."""
    api_key_ids: list[str] | None = None
    """Only asked for with these keys."""


class ReportQuery(RangeQuery, kw_only=True):
    """The query of a report: which usage, in which pieces."""

    limit: Annotated[int, Meta(ge=1)] | None = None
    """Buckets in one answer."""
    page: PageAnchor | None = None
    """The ``next_page`` of the answer before."""


class UsageQuery(ReportQuery, kw_only=True):
    """The query of a report of usage."""

    bucket_width: Width = "1d"
    """Of minutes 60 are told at once unless ``limit`` says otherwise, 1,440 at most; of hours 24 and 168; of days 7 and
    31. All are those of UTC."""
    models: list[str] | None = None
    """Only of these models, by the names that clients have used."""
    group_by: list[Literal["project_id", "api_key_id", "model", "service_tier"]] | None = None
    """A result for each value, or each combination of values, instead of one in a bucket."""


class RecordsQuery(RangeQuery, kw_only=True):
    """The query of single usage records."""

    models: list[str] | None = None
    """Only of these models, by the names that clients have used."""


class CostsQuery(ReportQuery, kw_only=True):
    """The query of a report of costs: 7 buckets at once unless ``limit`` says otherwise, 180 at most."""

    bucket_width: Literal["1d"] = "1d"
    """Days of UTC."""
    group_by: list[Literal["project_id", "api_key_id", "line_item"]] | None = None
    """A result for each value, or each combination of values. A line item is a model."""


class UsageResult(Struct, kw_only=True):
    """Usage in a bucket, of one value of what it was grouped by."""

    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: TokenCount
    """All of them."""
    input_cached_tokens: TokenCount
    """Part of ``input_tokens``."""
    input_cache_write_tokens: TokenCount
    """Part of ``input_tokens``."""
    input_uncached_tokens: TokenCount
    """The rest of ``input_tokens``."""
    output_tokens: TokenCount
    """With the model's reasoning."""
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    num_model_requests: int
    """Responses."""
    project_id: str | None = None
    api_key_id: str | None = None
    """Null where it was not grouped by this, and of responses without a key."""
    user_id: None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None


class Amount(Struct, kw_only=True):
    """Money."""

    value: float
    currency: str
    """In lower case, as in ``usd``."""


class CostsResult(Struct, kw_only=True):
    """What was charged in a bucket, of one value of what it was grouped by: before credit and tax."""

    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    """The model."""
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: None = None
    quantity: None = None


class UsageBucket(Struct, kw_only=True):
    """A minute, an hour or a day."""

    object: Literal["bucket"] = "bucket"
    start_time: UnixSeconds
    end_time: UnixSeconds
    results: list[UsageResult]
    """Empty of no usage."""


class CostsBucket(Struct, kw_only=True):
    """A day."""

    object: Literal["bucket"] = "bucket"
    start_time: UnixSeconds
    end_time: UnixSeconds
    results: list[CostsResult]
    """Empty of no usage."""


class UsagePage(Struct, kw_only=True):
    """Buckets in the order of time."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None
    """The ``page`` of the next question."""


class CostsPage(Struct, kw_only=True):
    """Buckets in the order of time."""

    object: Literal["page"] = "page"
    data: list[CostsBucket]
    has_more: bool
    next_page: str | None
    """The ``page`` of the next question."""
