"""An invoice as it is sent: HTML, PDF, CSV, JSON. The templates ``responses_ws/invoice/*`` may be replaced."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import mark_safe

from responses_ws.models import Invoice, InvoiceLine

from . import spreadsheets
from .money import minor_digits, nano_per_cent, plain, spoken

STYLE = Path(__file__).parents[1] / "static" / "responses_ws" / "invoice.css"
COLUMNS = (
    *("number", "section", "project", "key", "model", "description", "responses", "tokens", "amount", "currency"),
)


class Unavailable(Exception):
    """This form cannot be made here; the message says what is missing."""


def context(invoice: Invoice) -> dict[str, Any]:
    """What the templates are told: ``invoice``, ``sections``, and words for ``title``, ``total``, ``billed_to``.

    Of a section: ``key``, ``name``, ``subtotal``, and ``lines``: ``name``, ``detail``, ``responses``, ``tokens``,
    ``amount``.
    """
    currency = invoice.currency
    unit = nano_per_cent(currency)
    sections = []
    for key, rows in groupby(invoice.lines.all(), key=lambda line: line.section):
        lines = list(rows)
        sections.append(
            {
                "key": key,
                "name": InvoiceLine.Section(key).label,
                "lines": [_said(line, currency) for line in lines],
                "subtotal": spoken(sum(line.amount_nano for line in lines), currency),
            }
        )
    return {
        "invoice": invoice,
        "title": _title(invoice),
        "sections": sections,
        "total": spoken(invoice.total_cents * unit, currency),
        "last_day": invoice.last_day,
        "billed_to": invoice.billed_to or invoice.organization.billed_to or invoice.organization.name,
        "is_draft": invoice.status == Invoice.Status.DRAFT,
        "is_note": invoice.kind == Invoice.Kind.CREDIT_NOTE,
    }


def html(invoice: Invoice) -> str:
    """A page that is whole by itself: it asks for nothing from anywhere, and prints on A4."""
    style = mark_safe(STYLE.read_text())  # noqa: S308  our own file
    return render_to_string("responses_ws/invoice/document.html", {**context(invoice), "style": style})


def pdf(invoice: Invoice) -> bytes:
    """The same on paper. Raises `Unavailable`: WeasyPrint, or a library that it needs, is not here."""
    try:
        import weasyprint  # type: ignore[import-untyped, unused-ignore]
    except (ImportError, OSError) as exc:
        hint = "pip install 'responses-ws[pdf]', and Pango: apt install libpango-1.0-0 libpangoft2-1.0-0"
        raise Unavailable(f"PDF needs WeasyPrint ({hint})") from exc
    return weasyprint.HTML(string=html(invoice), url_fetcher=_nothing).write_pdf()


def csv(invoice: Invoice) -> Iterator[str]:
    """The lines, each with its end; amounts are exact."""
    yield spreadsheets.line(COLUMNS)
    for line in invoice.lines.all():
        amount = spreadsheets.Number(_exact(line.amount_nano, invoice))
        words = (invoice.reference, line.section, line.project_name, line.key_name, line.model, line.description)
        yield spreadsheets.line((*words, line.responses, line.tokens, amount, invoice.currency))


def as_json(invoice: Invoice) -> dict[str, Any]:
    """The invoice as a JSON object. Amounts are strings, so that no reader makes floats of them; times are ISO 8601."""
    unit = nano_per_cent(invoice.currency)
    return {
        "object": invoice.kind,
        "number": invoice.reference or None,
        "status": invoice.status,
        "corrects": invoice.corrects.reference if invoice.corrects else None,
        "currency": invoice.currency,
        "issuer": invoice.issuer,
        "billed_to": invoice.billed_to,
        "period_start": invoice.period_start.isoformat(),
        "period_end": invoice.period_end.isoformat(),
        "finalized_at": _moment(invoice.finalized_at),
        "due_at": _moment(invoice.due_at),
        "paid_at": _moment(invoice.paid_at),
        "voided_at": _moment(invoice.voided_at),
        "memo": invoice.memo,
        "amount": _exact(invoice.amount_nano, invoice),
        "total": _exact(invoice.total_cents * unit, invoice),
        "lines": [
            {
                "section": line.section,
                "project": line.project_name,
                "key": line.key_name,
                "model": line.model,
                "description": line.description,
                "responses": line.responses,
                "tokens": line.tokens,
                "amount": _exact(line.amount_nano, invoice),
            }
            for line in invoice.lines.all()
        ],
    }


def file_name(invoice: Invoice, form: str) -> str:
    """For a download: the number, or what the draft is of."""
    name = invoice.reference or f"draft-{invoice.organization_id}-{invoice.period_start:%Y-%m}"
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name) + f".{form}"


def _title(invoice: Invoice) -> str:
    if invoice.status == Invoice.Status.DRAFT:
        return "Draft of an invoice"
    return f"{invoice.get_kind_display().capitalize()} {invoice.reference}"


def _said(line: InvoiceLine, currency: str) -> dict[str, Any]:
    name = line.description or line.model
    return {
        "name": name,
        "detail": " / ".join(part for part in (line.project_name, line.key_name) if part),
        "responses": f"{line.responses:,}" if line.responses else "",
        "tokens": f"{line.tokens:,}" if line.tokens else "",
        "amount": spoken(line.amount_nano, currency),
    }


def _exact(nano: int, invoice: Invoice) -> str:
    return plain(nano, decimals=minor_digits(invoice.currency))


def _moment(value: Any) -> str | None:
    return value.isoformat() if value else None


def _nothing(url: str, *_args: Any, **_options: Any) -> Any:
    """Pictures and styles of a host's template are data: whatever it names, nothing is fetched for it."""
    if url.startswith("data:"):
        import weasyprint  # type: ignore[import-untyped, unused-ignore]

        return weasyprint.default_url_fetcher(url)
    raise ValueError("an invoice asks for nothing from elsewhere")
