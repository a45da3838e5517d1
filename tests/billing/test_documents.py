"""An invoice says in every form what is in its rows, exactly and in the same order."""

import csv
import io
import sys
from datetime import UTC, date, datetime

import pytest

from responses_ws.billing import documents
from responses_ws.models import Invoice, InvoiceLine, Organization

from .rows import make_project
from .spoiling import take_guards_down

pytestmark = pytest.mark.django_db

START, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
SENT = datetime(2026, 12, 3, 9, tzinfo=UTC)


@pytest.fixture
def invoice():
    """Number 7 of acme: 3.504 of usage, 1.25 of credit, and a rounding. Tests may write to it."""
    take_guards_down()
    project = make_project("acme", "chat")
    one = Invoice.objects.create(
        organization=project.organization,
        status="finalized",
        number=7,
        reference="INV-0001/7",
        period_start=START,
        period_end=END,
        amount_nano=2_254_000_000,
        total_cents=225,
        billed_to="Acme Ltd\n2 Street",
        issuer="We\n1 Road",
        memo="thank you",
        finalized_at=SENT,
        due_at=SENT.replace(day=17),
    )
    used = {"section": "usage", "project": project, "project_name": "chat", "model": "m"}
    for fields in (
        {**used, "key_name": "laptop", "responses": 1_234, "tokens": 5_678_901, "amount_nano": 3_000_000_000},
        {**used, "responses": 1, "tokens": 1_100, "amount_nano": 504_000_000},
        {"section": "credit", "description": "Prepaid credit", "amount_nano": -1_250_000_000},
        {"section": "rounding", "description": "Rounding", "amount_nano": -4_000_000},
    ):
        InvoiceLine.objects.create(invoice=one, **fields)
    return one


def test_a_page_is_told_sections_with_their_lines_and_sums(invoice):
    told = documents.context(invoice)

    assert [(one["key"], one["name"], one["subtotal"]) for one in told.pop("sections")] == [
        ("usage", "usage", "3.504 USD"),
        ("credit", "credit used", "\u22121.25 USD"),
        ("rounding", "rounding", "\u22120.004 USD"),
    ]
    assert told == {
        "invoice": invoice,
        "title": "Invoice INV-0001/7",
        "total": "2.25 USD",
        "last_day": date(2026, 11, 30),
        "billed_to": "Acme Ltd\n2 Street",
        "is_draft": False,
        "is_note": False,
    }


def test_a_line_says_what_it_is_of_and_leaves_out_what_is_nothing(invoice):
    usage, credit, _ = documents.context(invoice)["sections"]

    assert usage["lines"] == [
        {
            "name": "m",
            "detail": "chat / laptop",
            "responses": "1,234",
            "tokens": "5,678,901",
            "amount": "3.00 USD",
        },
        {"name": "m", "detail": "chat", "responses": "1", "tokens": "1,100", "amount": "0.504 USD"},
    ]
    assert credit["lines"] == [
        {"name": "Prepaid credit", "detail": "", "responses": "", "tokens": "", "amount": "\u22121.25 USD"}
    ]


def test_a_draft_and_a_credit_note_say_so(invoice):
    owner = Organization.objects.get()
    draft = Invoice.objects.create(organization=owner, period_start=END, period_end=END.replace(year=2027))
    note = Invoice.objects.create(
        organization=owner, kind="credit_note", corrects=invoice, status="finalized", number=1, reference="CN-1",
        period_start=START, period_end=END, billed_to="Acme Ltd",
    )  # fmt: skip

    of_draft, of_note = documents.context(draft), documents.context(note)

    assert (of_draft["title"], of_draft["is_draft"], of_draft["is_note"]) == ("Draft of an invoice", True, False)
    assert (of_note["title"], of_note["is_draft"], of_note["is_note"]) == ("Credit note CN-1", False, True)
    assert documents.as_json(note)["corrects"] == "INV-0001/7"
    assert documents.as_json(draft)["number"] is None


def test_a_draft_is_billed_to_whom_the_organisation_names_now(invoice):
    Invoice.objects.update(billed_to="")
    assert documents.context(Invoice.objects.get())["billed_to"] == "acme"

    Organization.objects.update(billed_to="Acme GmbH")

    assert documents.context(Invoice.objects.get())["billed_to"] == "Acme GmbH"


def test_csv_has_every_line_to_the_nano_unit(invoice):
    first, second, *others = csv.DictReader(io.StringIO("".join(documents.csv(invoice)), newline=""))

    assert first == {
        "number": "INV-0001/7",
        "section": "usage",
        "project": "chat",
        "key": "laptop",
        "model": "m",
        "description": "",
        "responses": "1234",
        "tokens": "5678901",
        "amount": "3.00",
        "currency": "USD",
    }
    assert (second["key"], second["amount"]) == ("", "0.504")
    assert [(one["description"], one["amount"]) for one in others] == [
        ("Prepaid credit", "-1.25"),
        ("Rounding", "-0.004"),
    ]


def test_json_says_everything(invoice):
    told = documents.as_json(invoice)

    lines = told.pop("lines")
    assert told == {
        "object": "invoice",
        "number": "INV-0001/7",
        "status": "finalized",
        "corrects": None,
        "currency": "USD",
        "issuer": "We\n1 Road",
        "billed_to": "Acme Ltd\n2 Street",
        "period_start": "2026-11-01T00:00:00+00:00",
        "period_end": "2026-12-01T00:00:00+00:00",
        "finalized_at": "2026-12-03T09:00:00+00:00",
        "due_at": "2026-12-17T09:00:00+00:00",
        "paid_at": None,
        "voided_at": None,
        "memo": "thank you",
        "amount": "2.254",
        "total": "2.25",
    }
    assert lines[0] == {
        "section": "usage",
        "project": "chat",
        "key": "laptop",
        "model": "m",
        "description": "",
        "responses": 1_234,
        "tokens": 5_678_901,
        "amount": "3.00",
    }
    assert [line["section"] for line in lines] == ["usage", "usage", "credit", "rounding"]


def test_json_says_when_it_was_paid_or_became_void(invoice):
    invoice.paid_at, invoice.voided_at = SENT, SENT.replace(day=4)

    told = documents.as_json(invoice)

    assert (told["paid_at"], told["voided_at"]) == ("2026-12-03T09:00:00+00:00", "2026-12-04T09:00:00+00:00")


def test_amounts_have_the_places_of_their_currency(invoice):
    Invoice.objects.update(currency="JPY", total_cents=225)
    InvoiceLine.objects.filter(section="usage").update(amount_nano=3_000_000_000)
    yen = Invoice.objects.get()

    assert documents.context(yen)["total"] == "225 JPY"
    assert documents.as_json(yen)["total"] == "225"
    assert documents.as_json(yen)["lines"][0]["amount"] == "3"
    assert ",3,JPY\r\n" in list(documents.csv(yen))[1]


def test_a_file_is_called_as_the_invoice_and_nothing_in_its_name_is_a_path(invoice):
    owner = Organization.objects.get()
    draft = Invoice(organization=owner, period_start=START, period_end=END)

    assert documents.file_name(invoice, "pdf") == "INV-0001_7.pdf"
    assert documents.file_name(draft, "csv") == f"draft-{owner.pk}-2026-11.csv"
    assert documents.file_name(Invoice(reference="../a b.c_dX"), "html") == ".._a_b.c_dX.html"


def test_a_page_is_whole_and_quotes_what_was_typed(invoice):
    InvoiceLine.objects.filter(key_name="laptop").update(key_name="<b>")

    page = documents.html(invoice)

    assert page.lstrip().lower().startswith("<!doctype html>")
    assert documents.STYLE.read_text().strip() in page
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert "Acme Ltd<br>2 Street" in page


def test_without_weasyprint_it_says_what_to_install(invoice, monkeypatch):
    monkeypatch.setitem(sys.modules, "weasyprint", None)

    with pytest.raises(documents.Unavailable) as refused:
        documents.pdf(invoice)

    assert str(refused.value) == (
        "PDF needs WeasyPrint (pip install 'responses-ws[pdf]', and Pango: apt install libpango-1.0-0 "
        "libpangoft2-1.0-0)"
    )


class Paper:
    """In the place of `weasyprint`: it notes what it is to print. Paper itself is made in the tests of the office."""

    def HTML(self, *, string, url_fetcher):
        self.string, self.url_fetcher = string, url_fetcher
        return self

    def write_pdf(self):
        return b"%PDF-"

    def default_url_fetcher(self, url):
        return {"string": url}


def test_paper_is_the_page_and_fetches_nothing_for_it(invoice, monkeypatch):
    paper = Paper()
    monkeypatch.setitem(sys.modules, "weasyprint", paper)

    assert documents.pdf(invoice) == b"%PDF-"

    assert paper.string == documents.html(invoice)
    assert paper.url_fetcher("data:,x") == {"string": "data:,x"}
    for url in ("https://example.com/a.png", "file:///etc/passwd", "http://127.0.0.1/", "DATA:,x"):
        with pytest.raises(ValueError, match="^an invoice asks for nothing from elsewhere$"):
            paper.url_fetcher(url)
