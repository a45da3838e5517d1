"""Entries on their way into the ledger, and their postings."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from django.db.models import F

from responses_ws.models import Account, Journal, Posting, RatedLine, UsageRecord

from .pricing import Charge

RECEIVABLE, REVENUE = str(Account.Kind.RECEIVABLE), str(Account.Kind.REVENUE)


class Entry(msgspec.Struct, kw_only=True):
    """One journal with what it says, before and after it is written.

    ``amounts`` are its postings in nano units of ``currency`` by kind of account, debit above 0; they sum to 0. A
    reversal has those of the entry it takes back with the opposite sign, and its ``record``.
    """

    journal: Journal
    currency: str
    amounts: dict[str, int]
    record: UsageRecord | None = None
    """What was used, as it was when the entry was made; None where the entry is about no response."""
    charge: Charge | None = None
    """The working of a usage entry; None for all others."""

    @property
    def sign(self) -> int:
        """-1 for a reversal: what counts responses and tokens counts them back."""
        return -1 if self.journal.kind == Journal.Kind.REVERSAL else 1

    @property
    def amount_nano(self) -> int:
        """What it says that was earned, whatever pays for it: below 0 for the reversal of usage."""
        return -self.amounts.get(REVENUE, 0)

    def move(self, amount_nano: int, source: str, target: str) -> None:
        """Debit ``target`` with a part of what ``source`` is debited with."""
        self.amounts[source] = self.amounts.get(source, 0) - amount_nano
        self.amounts[target] = self.amounts.get(target, 0) + amount_nano


def of_usage(journal: Journal, record: UsageRecord, charge: Charge, currency: str) -> Entry:
    """The entry of one response: all of it is owed, as long as nobody moves a part."""
    amounts = {RECEIVABLE: charge.amount_nano, REVENUE: -charge.amount_nano}
    return Entry(journal=journal, currency=currency, amounts=amounts, record=record, charge=charge)


def write_lines(entries: Iterable[Entry]) -> None:
    """Add the working of entries whose journals are written."""
    RatedLine.objects.bulk_create(
        RatedLine(
            journal=entry.journal,
            component=line.component,
            quantity=line.quantity,
            price_id=line.price_id,
            amount_nano=line.amount_nano,
        )
        for entry in entries
        if entry.charge is not None
        for line in entry.charge.lines
    )


def write_postings(entries: list[Entry]) -> None:
    """Add the postings of entries, and move the balances: one update per account, the hot rows last."""
    for entry in entries:
        assert sum(entry.amounts.values()) == 0, "debits and credits of an entry differ"
    accounts = _accounts_of(entries)
    moved: dict[int, int] = defaultdict(int)
    postings = []
    for entry in entries:
        for kind, amount in entry.amounts.items():
            account_id = accounts[entry.journal.organization_id, kind, entry.currency]
            postings.append(Posting(journal=entry.journal, account_id=account_id, amount_nano=amount))
            moved[account_id] += amount
    Posting.objects.bulk_create(postings)
    # In the order of their ids: two workers that share accounts wait for each other, and never in a circle.
    for account_id, amount in sorted(moved.items()):
        if amount:
            Account.objects.filter(pk=account_id).update(balance_nano=F("balance_nano") + amount)


def _accounts_of(entries: list[Entry]) -> dict[tuple[int, str, str], int]:
    """Account ids by (organization, kind, currency), created where missing."""
    wanted = {(entry.journal.organization_id, kind, entry.currency) for entry in entries for kind in entry.amounts}
    organizations = {organization for organization, _kind, _currency in wanted}
    accounts = _account_ids(organizations)
    missing = [
        Account(organization_id=organization, kind=kind, currency=currency)
        for organization, kind, currency in sorted(wanted)
        if (organization, kind, currency) not in accounts
    ]
    if missing:
        # Another worker may create the same; the constraint lets one of us win and both go on.
        Account.objects.bulk_create(missing, ignore_conflicts=True)
        accounts = _account_ids(organizations)
    return accounts


def _account_ids(organizations: set[int]) -> dict[tuple[int, str, str], int]:
    found = Account.objects.filter(organization__in=organizations)
    rows = found.values_list("organization", "kind", "currency", "pk")
    return {(organization, kind, currency): pk for organization, kind, currency, pk in rows}
