"""Credit is given in the admin once, and never edited."""

import pytest
from django.urls import reverse

from responses_ws.billing import credits, ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import CreditGrant, Organization
from tests.billing.rows import make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

ADD = "/admin/responses_ws/creditgrant/add/"


def given(**fields):
    organization = make_project().organization
    plausible = {"organization": organization.pk, "kind": "paid", "priority": 50, "amount": "12.50", "note": "order 7"}
    return {**plausible, "expires_at_0": "", "expires_at_1": "", "idempotency_key": "", **fields}


def test_credit_is_given_in_the_currency_of_who_gets_it(boss):
    Organization.objects.filter(pk=make_project().organization_id).update(currency="EUR")

    answer = boss.post(ADD, given(), follow=True)

    assert "12.50 EUR" in answer.content.decode()
    grant = CreditGrant.objects.get()
    assert (grant.amount_nano, grant.remaining_nano, grant.currency) == (12_500_000_000, 12_500_000_000, "EUR")
    assert reconcile() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"amount": "twelve"}, "not an amount"),
        ({"amount": "-1"}, "not an amount"),
        ({"amount": "0.0000000001"}, "nine decimals"),
        ({"expires_at_0": "2001-01-01", "expires_at_1": "00:00:00"}, "before it is made"),
        ({"idempotency_key": "taken"}, "was used for another grant"),
    ],
)
def test_what_is_no_grant_is_said_on_the_form(boss, wrong, said):
    credits.grant(make_project().organization, 1, kind="paid", idempotency_key="taken")

    answer = boss.post(ADD, given(**wrong))

    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert CreditGrant.objects.count() == 1


def test_a_grant_shows_its_uses_and_takes_no_change(boss):
    grant = credits.grant(make_project().organization, 10**9, kind="paid")
    make_prices()
    make_record(response_id="resp_used")
    ledger.bill_all()
    path = reverse("admin:responses_ws_creditgrant_change", args=(grant.pk,))

    page = boss.get(path).content.decode()

    assert "0.0028 USD" in page and "usage:resp_used:1" in page and "0.9972 USD" in page
    assert b'name="_save"' not in boss.get(path).content
    assert boss.post(path, given()).status_code == 403
