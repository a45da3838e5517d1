"""What an organisation has used and what it costs, as OpenAI's API tells it, for admin keys and nobody else."""

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import AsyncClient, Client

from responses_ws.billing import ledger
from responses_ws.models import AdminKey, ApiKey, Project
from responses_ws.runtime import dbpool
from tests.billing.rows import make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db(transaction=True)

DAY = datetime(2026, 3, 18, tzinfo=UTC)
USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
RECORDS = "/v1/organization/usage/records.csv"


def unix(moment: datetime) -> int:
    return int(moment.timestamp())


class Books:
    """One organisation with an admin key; and how to ask with it."""

    def __init__(self, name: str) -> None:
        self.project: Project = make_project(name)
        self.api_key: ApiKey = make_key(self.project)
        owner = self.project.organization
        self.key: AdminKey = AdminKey.objects.create_with_secret(organization=owner, name="books")

    def use(self, at: datetime = DAY, **fields: Any) -> None:
        fields = {"api_key": self.api_key, "input_tokens": 1_000_000, "output_tokens": 10, **fields}
        make_record(self.project, started_at=at, **fields)

    def ask(self, path: str = USAGE, secret: str | None = "", **query: Any) -> Any:
        given = self.key.secret if secret == "" else secret
        headers = {} if given is None else {"Authorization": f"Bearer {given}"}
        return Client(headers=headers).get(path, {"start_time": unix(DAY), **query})


@pytest.fixture
def books() -> Books:
    make_prices(
        per_million={"input": 2 * 10**9, "cached_input": 10**9, "output": 0}, valid_from=DAY - timedelta(days=9)
    )
    return Books("acme")


def results(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.content
    return [result for bucket in answer.json()["data"] for result in bucket["results"]]


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
def test_every_width_tells_the_same_in_other_pieces(books: Books, width: str) -> None:
    books.use(DAY, cached_tokens=400_000)
    books.use(DAY + timedelta(minutes=3))
    ledger.bill_all()

    answer = books.ask(bucket_width=width, end_time=unix(DAY + timedelta(hours=1)))

    page = answer.json()
    assert (page["object"], page["data"][0]["object"]) == ("page", "bucket")
    told = results(answer)
    assert len(told) == (2 if width == "1m" else 1)
    assert told[0]["object"] == "organization.usage.completions.result"
    sums = {name: sum(one[name] for one in told) for name in told[0] if isinstance(told[0][name], int)}
    assert sums["input_tokens"] == 2_000_000
    assert sums["input_cached_tokens"] == 400_000
    assert sums["input_uncached_tokens"] == 1_600_000
    assert sums["output_tokens"] == 20
    assert sums["num_model_requests"] == 2


def test_costs_are_those_of_the_ledger(books: Books) -> None:
    books.use(DAY, cached_tokens=400_000)
    books.use(DAY + timedelta(days=1), model="m")
    ledger.bill_all()

    whole = books.ask(COSTS, end_time=unix(DAY + timedelta(days=3)))
    by_model = books.ask(COSTS, end_time=unix(DAY + timedelta(days=3)), group_by="line_item,project_id")

    amounts = [bucket["results"] for bucket in whole.json()["data"]]
    assert [one[0]["amount"] if one else None for one in amounts] == [
        {"value": 1.6, "currency": "usd"},
        {"value": 2.0, "currency": "usd"},
        None,
    ]
    assert {one["line_item"] for one in results(by_model)} == {"m"}
    assert {one["project_id"] for one in results(by_model)} == {str(books.project.pk)}


def test_it_is_grouped_and_narrowed_as_asked(books: Books) -> None:
    other = make_key(books.project)
    books.use()
    books.use(api_key=other, model="n")
    books.use(api_key=None, model="n")
    ledger.bill_all()
    until = unix(DAY + timedelta(days=1))

    grouped = results(books.ask(end_time=until, **{"group_by[]": ["api_key_id", "model"]}))
    narrowed = results(books.ask(end_time=until, models="n", api_key_ids=other.pk))

    assert {(one["api_key_id"], one["model"]) for one in grouped} == {
        (str(books.api_key.pk), "m"),
        (str(other.pk), "n"),
        (None, "n"),
    }
    assert [one["num_model_requests"] for one in narrowed] == [1]


def test_pages_lead_through_all_buckets_once(books: Books) -> None:
    for day in range(5):
        books.use(DAY + timedelta(days=day))
    ledger.bill_all()
    query = {"end_time": unix(DAY + timedelta(days=5)), "limit": 2}

    starts: list[int] = []
    page = books.ask(**query).json()
    while True:
        starts += [bucket["start_time"] for bucket in page["data"]]
        if not page["has_more"]:
            break
        page = books.ask(**query, page=page["next_page"]).json()

    assert starts == [unix(DAY + timedelta(days=day)) for day in range(5)]
    assert page["next_page"] is None
    costs = [books.ask(COSTS, **query).json()]
    while costs[-1]["has_more"]:
        costs.append(books.ask(COSTS, **query, page=costs[-1]["next_page"]).json())
    assert [bucket["start_time"] for one in costs for bucket in one["data"]] == starts
    assert costs[-1]["next_page"] is None


def test_an_organisation_sees_its_own_figures_and_no_others(books: Books) -> None:
    others = Books("globex")
    others.use(model="secret-model")
    ledger.bill_all()
    query = {"end_time": unix(DAY + timedelta(days=1)), "group_by": "model"}

    foreign = [{}, {"project_ids": others.project.pk}, {"api_key_ids": others.api_key.pk}, {"models": "secret-model"}]
    for narrowed in foreign:
        answer = books.ask(**query, **narrowed)
        assert results(answer) == []
        assert narrowed.get("models") or b"secret-model" not in answer.content
    for narrowed in foreign[:3]:
        assert results(books.ask(COSTS, **{**query, "group_by": "line_item"}, **narrowed)) == []
    assert len(results(others.ask(**query))) == 1


def test_only_admin_keys_open_it_and_they_open_nothing_else(books: Books) -> None:
    assert books.ask(secret=None).status_code == 401
    assert books.ask(secret="sk-admin-wrong").status_code == 401
    assert books.ask(secret=books.api_key.secret).status_code == 403
    assert books.ask("/v1/models").status_code == 401
    assert books.ask("/v1/responses/resp_1").status_code == 401

    AdminKey.objects.revoke()

    assert books.ask().status_code == 401


def test_a_key_is_known_by_what_is_left_of_it_in_a_refusal(books: Books) -> None:
    messages = [
        books.ask(secret=secret).json()["error"]["message"]
        for secret in (None, "sk-admin-0123456789", books.api_key.secret)
    ]

    assert messages == [
        "You didn't provide an admin key. Send it in an Authorization header: 'Authorization: Bearer KEY'.",
        "Incorrect admin key provided: sk-…89.",
        "This is the API key of a project. An organization's figures need an admin key.",
    ]


def test_that_a_key_was_used_is_noted_once_a_minute(books: Books) -> None:
    other = AdminKey.objects.create_with_secret(organization=books.project.organization, name="other")
    books.ask()
    first = AdminKey.objects.get(pk=books.key.pk).last_used_at
    assert first is not None and AdminKey.objects.get(pk=other.pk).last_used_at is None

    books.ask()
    assert AdminKey.objects.get(pk=books.key.pk).last_used_at == first
    AdminKey.objects.filter(pk=books.key.pk).update(last_used_at=first - timedelta(minutes=2))
    books.ask()

    again = AdminKey.objects.get(pk=books.key.pk).last_used_at
    assert again is not None and again >= first


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_time": ""}, "start_time"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": 10**18}, "start_time"),
        ({"end_time": 5}, "end_time"),
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"limit": 0}, "limit"),
        ({"limit": 32}, "limit"),
        ({"page": "page_zz"}, "page"),
        ({"page": "page_ffffffffffffffff"}, "page"),
        ({"group_by": "colour"}, "group_by"),
        ({"group_by": "user_id"}, "group_by"),
        ({"user_ids": "u"}, "user_ids"),
    ],
    ids=str,
)
def test_what_it_does_not_know_is_refused_by_name(books: Books, query: dict[str, Any], param: str) -> None:
    answer = books.ask(**query)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_ids_that_nobody_has_find_nothing(books: Books) -> None:
    books.use()
    ledger.bill_all()

    for ids in ("nobody", "0", "-1", "9" * 30, "proj_1"):
        assert results(books.ask(project_ids=ids)) == []


async def csv_of(books: Books, **query: Any) -> tuple[Any, list[dict[str, str]]]:
    """The answer and its lines, as they are streamed."""
    headers = {"Authorization": f"Bearer {books.key.secret}"}
    answer: Any = await AsyncClient().get(RECORDS, {"start_time": unix(DAY), **query}, headers=headers)
    if not answer.streaming:
        return answer, []
    text = b"".join([piece async for piece in answer.streaming_content]).decode()
    return answer, list(csv.DictReader(io.StringIO(text, newline="")))


async def test_records_are_streamed_a_line_each_as_narrowed(books: Books) -> None:
    def fill() -> tuple[str, str]:
        other = make_key(books.project)
        books.use(response_id="resp_first", cached_tokens=400_000)
        books.use(response_id="resp_other", api_key=other, model="n")
        books.use(DAY - timedelta(seconds=1))
        books.use(DAY + timedelta(days=1))
        Books("globex").use(model="secret-model")
        ledger.bill_all()
        books.use(DAY + timedelta(hours=1), response_id="resp_unbilled")
        return str(books.api_key.pk), str(other.pk)

    mine, other = await dbpool.run(fill)
    end = unix(DAY + timedelta(days=1))

    answer, lines = await csv_of(books, end_time=end)
    _, of_key = await csv_of(books, end_time=end, api_key_ids=other)
    _, of_models = await csv_of(books, end_time=end, models="m,n", **{"project_ids[]": books.project.pk})
    _, of_nobody = await csv_of(books, end_time=end, models="secret-model")

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="usage.csv"'
    assert [line["response_id"] for line in lines] == ["resp_first", "resp_other"]
    assert [line["api_key_id"] for line in lines] == [mine, other]
    assert (lines[0]["amount"], lines[0]["currency"], lines[0]["input_tokens"]) == ("1.60", "USD", "1000000")
    assert [line["response_id"] for line in of_key] == ["resp_other"]
    assert (len(of_models), of_nobody) == (2, [])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"end_time": 5}, "end_time"),
        ({"limit": 5}, "limit"),
        ({"group_by": "model"}, "group_by"),
        ({"bucket_width": "1d"}, "bucket_width"),
        ({"colour": "red"}, "colour"),
        ({"user_ids": "u"}, "user_ids"),
    ],
    ids=str,
)
async def test_what_records_do_not_have_is_refused_by_name(books: Books, query: dict[str, Any], param: str) -> None:
    answer, _ = await csv_of(books, **query)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_records_are_for_admin_keys_only(books: Books) -> None:
    assert books.ask(RECORDS, secret=None).status_code == 401
    assert books.ask(RECORDS, secret=books.api_key.secret).status_code == 403
