"""Invoices in the office: shown as they are sent, settled by buttons, downloaded in every form."""

import csv
import io
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from responses_ws.billing import invoices, ledger
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Invoice
from tests.billing.rows import make_key, make_prices, make_project, make_record

pytestmark = pytest.mark.django_db

NAME = "=1+1<script>alert('x')</script>"
"""Of a key: what neither a page nor a spreadsheet may run."""


@pytest.fixture
def invoice():
    """Of $2.80, finalised."""
    make_prices()
    # The last month that is over, whenever this runs.
    end, _ = invoices.month_of(timezone.now())
    start, _ = invoices.month_of(end - timedelta(days=1))
    project = make_project("acme", "chat")
    key = make_key(project, NAME)
    for _ in range(2):
        make_record(project, api_key=key, input_tokens=695_000, output_tokens=1_250, started_at=start)
    ledger.bill_all()
    one = invoices.draft(project.organization, start, end)
    invoices.finalize(one, end)
    return one


def page_of(one):
    return reverse("admin:responses_ws_invoice_change", args=(one.pk,))


def order(client, one, what, **more):
    path = reverse("admin:responses_ws_invoice_order", args=(one.pk,))
    return client.post(path, {"order": what, **more}, follow=True).content.decode()


def document(client, one, form):
    return client.get(reverse("admin:responses_ws_invoice_document", args=(one.pk, form)))


def test_its_page_shows_the_invoice_itself(boss, invoice):
    page = boss.get(page_of(invoice)).content.decode()

    for words in (invoice.reference, f"to {invoice.last_day:%-d %B %Y}, UTC", "2.80 USD", "chat", "1,392,500"):
        assert words in page, words
    assert NAME not in page


def test_who_may_only_look_sees_no_buttons(log_in, invoice):
    page = log_in("view_invoice").get(page_of(invoice)).content.decode()

    assert "2.80 USD" in page
    assert 'name="order"' not in page


def test_it_is_paid_with_a_button(boss, invoice):
    assert "Marked as paid" in order(boss, invoice, "pay", memo="wire 7")

    invoice.refresh_from_db()
    assert (invoice.status, invoice.journals.get(kind="payment").memo) == ("paid", "wire 7")


def test_it_is_void_with_a_button_and_finalised_again_with_another(boss, invoice):
    assert "Not yet an invoice" in order(boss, invoice, "void", memo="wrong address")
    again = Invoice.objects.drafts().get()

    order(boss, again, "preview")
    order(boss, again, "finalize")

    assert list(Invoice.objects.order_by("pk").values_list("status", "number")) == [("void", 1), ("finalized", 2)]
    assert reconcile() == []


@pytest.mark.parametrize(
    ("amount", "left", "said"),
    [
        ("1.50", 130, "Credited."),
        ("", 0, "Credited."),
        ("1.505", 280, "no amount of USD in coins"),
        ("5", 280, "no more than is left"),
        ("five", 280, "not an amount"),
    ],
)
def test_a_part_of_it_is_credited_or_all(boss, invoice, amount, left, said):
    assert said in order(boss, invoice, "credit", amount=amount, memo="goodwill")

    assert invoices.open_cents(invoice) == left
    assert reconcile() == []


def test_what_is_not_possible_is_said_and_not_done(boss, invoice):
    assert "is finalised" in order(boss, invoice, "finalize")
    assert "finalised" in order(boss, invoice, "preview")
    order(boss, invoice, "nonsense")

    invoice.refresh_from_db()
    assert invoice.status == "finalized"


def test_selected_invoices_are_paid_and_what_cannot_be_is_said(boss, invoice):
    path = reverse("admin:responses_ws_invoice_changelist")
    chosen = {"action": "pay_selected", "_selected_action": [invoice.pk]}

    first = boss.post(path, chosen, follow=True).content.decode()
    second = boss.post(path, chosen, follow=True).content.decode()

    assert "1 paid." in first
    assert f"{invoice.reference} is paid" in second


@pytest.mark.parametrize(("state", "count"), [("overdue", 1), ("finalized", 1), ("paid", 0), ("draft", 1), ("", 2)])
def test_the_list_is_filtered_by_status_and_by_what_is_overdue(boss, settings, invoice, state, count):
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "INVOICE_NET_DAYS": -100}
    order(boss, invoice, "void")
    late = Invoice.objects.drafts().get()
    order(boss, late, "finalize")
    invoices.draft(make_project("globex").organization, late.period_start, late.period_end)

    page = boss.get(reverse("admin:responses_ws_invoice_changelist"), {"state": state} if state else {})

    assert len(page.context["cl"].result_list) == count + (not state)


def test_the_page_that_is_sent_is_whole_by_itself(boss, invoice):
    answer = document(boss, invoice, "html")

    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    page = answer.content.decode()
    assert "src=" not in page and "href=" not in page and "url(" not in page and "@import" not in page
    assert NAME not in page and "&lt;script&gt;" in page


def test_csv_is_exact_and_no_cell_of_it_is_a_formula(boss, invoice):
    answer = document(boss, invoice, "csv")

    assert answer.headers["Content-Disposition"] == f'attachment; filename="{invoice.reference}.csv"'
    (line,) = csv.DictReader(io.StringIO(answer.content.decode(), newline=""))
    assert (line["key"], line["amount"], line["currency"]) == (f"'{NAME}", "2.80", "USD")


def test_json_says_amounts_as_words(boss, invoice):
    told = document(boss, invoice, "json").json()

    assert (told["total"], told["status"], told["lines"][0]["amount"]) == ("2.80", "finalized", "2.80")
    assert told["period_start"] == invoice.period_start.isoformat()


def test_pdf_is_made_or_what_is_missing_is_said(boss, invoice):
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError):
        answer = boss.get(reverse("admin:responses_ws_invoice_document", args=(invoice.pk, "pdf")), follow=True)
        assert "pip install" in answer.content.decode()
    else:
        assert document(boss, invoice, "pdf").content.startswith(b"%PDF-")


def test_other_forms_there_are_not(boss, invoice):
    assert document(boss, invoice, "exe").status_code == 404
