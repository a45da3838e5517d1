"""The list of usage records goes into a spreadsheet: what is filtered for, all of it, for who may see it."""

import csv
import io
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient
from django.urls import reverse

from responses_ws.billing import ledger
from tests.billing.rows import make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

EXPORT = "admin:responses_ws_usagerecord_export"


def lines_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_it_holds_what_is_filtered_and_searched_for_of_all_pages(log_in: Any) -> None:
    make_prices()
    for number in range(120):
        make_record(response_id=f"resp_a{number}", status="completed" if number % 2 else "failed")
    make_record(response_id="resp_b")
    make_record(make_project("globex"), response_id="resp_a_other")
    ledger.bill_all()
    client = log_in("view_usagerecord")
    query = {"status__exact": "failed", "q": "resp_a", "p": 2}
    listed = client.get(reverse("admin:responses_ws_usagerecord_changelist"), query)

    url = listed.context_data["export_url"]
    answer = client.get(url)

    assert f'<a href="{url.replace("&", "&amp;")}"' in listed.content.decode()
    lines = lines_of(b"".join(answer))
    assert [line["response_id"] for line in lines] == [f"resp_a{number}" for number in range(0, 120, 2)]
    assert answer["Content-Disposition"] == 'attachment; filename="usage.csv"'
    assert "p=2" not in url


def test_a_filter_that_means_nothing_leads_back_to_the_list(log_in: Any) -> None:
    answer = log_in("view_usagerecord").get(reverse(EXPORT), {"colour": "red"})

    assert (answer.status_code, answer["Location"]) == (302, reverse("admin:responses_ws_usagerecord_changelist"))


@pytest.mark.django_db(transaction=True)
async def test_an_asynchronous_server_streams_it_as_it_reads() -> None:
    def fill() -> User:
        make_record(response_id="resp_one")
        return User.objects.create(username="boss", is_staff=True, is_superuser=True)

    client = AsyncClient()
    await client.aforce_login(await sync_to_async(fill)())

    answer: Any = await client.get(reverse(EXPORT))

    assert answer.is_async
    content = b"".join([piece async for piece in answer.streaming_content])
    assert [line["response_id"] for line in lines_of(content)] == ["resp_one"]
