"""What the database itself refuses, whoever asks: books that do not balance, and what was written being changed.

By hand, since Django has no words for triggers. On PostgreSQL also the rule that an entry's postings sum to zero, looked
at when a transaction commits, and that nothing is deleted; SQLite has no deferred triggers, and its tables are emptied
row by row by everybody's tests. Other databases are left as they are: there the application keeps the rules, and
``responses_ws_reconcile`` finds what breaks them.

Whoever has to delete on PostgreSQL says so: ``SET LOCAL responses_ws.may_delete = 'on'`` in the same transaction.

A migration that makes one of these tables anew on SQLite drops its triggers: it calls `install` again.
"""

from django.db import migrations

JOURNAL = "idempotency_key kind organization_id usage_id reverses_id rating_version memo occurred_at posted_at"
INVOICE = "organization_id kind corrects_id number currency period_start period_end amount_nano total_cents billed_to"
INVOICE += " reference issuer due_at"
THING = "currency model service_tier component min_context"

# (table, columns, when, message): these columns are not written again.
FROZEN = [
    ("journal", f"id {JOURNAL}", "", "entries of the ledger are added, never changed"),
    ("posting", "id journal_id account_id amount_nano", "", "postings are added, never changed"),
    ("ratedline", "id journal_id component quantity price_id amount_nano", "", "rated lines are added, never changed"),
    ("grantuse", "id journal_id grant_id amount_nano", "", "uses of credit are added, never changed"),
    ("invoice", f"id {INVOICE} finalized_at", "OLD.status <> 'draft'", "an invoice is not changed once it is finalised"),
    (
        "price",
        f"id {THING} nano_per_million valid_from",
        "EXISTS (SELECT 1 FROM responses_ws_ratedline line WHERE line.price_id = OLD.id)",
        "a price is not changed once it was used: end it and start another",
    ),
]
# (table, when, message): these rows are not deleted, on PostgreSQL, but by who says so.
NOT_SAID = "current_setting('responses_ws.may_delete', true) IS DISTINCT FROM 'on'"
KEPT = [(table, when, message) for table, _columns, when, message in FROZEN if table != "price"]
IS_SENT = "EXISTS (SELECT 1 FROM responses_ws_invoice sent WHERE sent.id = {row}.invoice_id AND sent.status <> 'draft')"
SENT = "lines of an invoice are not changed once it is finalised"
IS_DRAFT_AGAIN = "OLD.status <> 'draft' AND NEW.status = 'draft'"
DRAFT_AGAIN = "an invoice that is finalised is no draft again"

OVERLAP = "two prices of one thing at one time: end the other first"
OVERLAPS = (
    "EXISTS (SELECT 1 FROM responses_ws_price other WHERE "
    + " AND ".join(f"other.{column} = NEW.{column}" for column in THING.split())
    + " AND other.id <> NEW.id AND other.withdrawn_at IS NULL AND NEW.withdrawn_at IS NULL"
    " AND (other.valid_to IS NULL OR other.valid_to > NEW.valid_from)"
    " AND (NEW.valid_to IS NULL OR other.valid_from < NEW.valid_to))"
)


def _is_changed(columns: str, differs: str) -> str:
    return "(" + " OR ".join(f"OLD.{column} {differs} NEW.{column}" for column in columns.split()) + ")"


def _all(*conditions: str) -> str:
    return " AND ".join(condition for condition in conditions if condition)


def _sqlite_trigger(name: str, event: str, when: str, message: str) -> tuple[str, str]:
    table = name.partition("_")[0]
    drop = f"DROP TRIGGER IF EXISTS responses_ws_{name}"
    create = (
        f"CREATE TRIGGER responses_ws_{name} BEFORE {event} ON responses_ws_{table} FOR EACH ROW WHEN {when}"
        f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )
    return drop, create


def _on_sqlite() -> tuple[list[str], list[str]]:
    triggers = [
        _sqlite_trigger(f"{table}_frozen", "UPDATE", _all(_is_changed(columns, "IS NOT"), when), message)
        for table, columns, when, message in FROZEN
    ]
    # A new row has no id before it is written, and NULL <> 1 is not true.
    unsaved = OVERLAPS.replace(" AND other.id <> NEW.id", "")
    of_old, of_new = IS_SENT.format(row="OLD"), IS_SENT.format(row="NEW")
    triggers += [
        _sqlite_trigger("price_apart", "INSERT", unsaved, OVERLAP),
        _sqlite_trigger("price_still_apart", "UPDATE", OVERLAPS, OVERLAP),
        _sqlite_trigger("invoice_sent", "UPDATE", IS_DRAFT_AGAIN, DRAFT_AGAIN),
        _sqlite_trigger("invoiceline_added", "INSERT", of_new, SENT),
        _sqlite_trigger("invoiceline_moved", "UPDATE", f"{of_old} OR {of_new}", SENT),
    ]
    return [create for _drop, create in triggers], [drop for drop, _create in triggers]


def _postgresql_trigger(name: str, event: str, when: str, message: str) -> tuple[list[str], list[str]]:
    """A trigger and its function, which holds the condition: columns that a trigger names cannot be altered."""
    table = name.partition("_")[0]
    function = f"responses_ws_{name}()"
    row = "OLD" if event == "DELETE" else "NEW"
    create = [
        f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {when} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation'; END IF;"
        f" RETURN {row}; END $$",
        f"CREATE TRIGGER responses_ws_{name} BEFORE {event} ON responses_ws_{table}"
        f" FOR EACH ROW EXECUTE FUNCTION {function}",
    ]
    drop = [f"DROP TRIGGER IF EXISTS responses_ws_{name} ON responses_ws_{table}", f"DROP FUNCTION IF EXISTS {function}"]
    return create, drop


# Of one thing there is one price at any moment, whatever other transactions are about to write. A hash stands for the
# thing, as a range of one number, since ranges need no extension here and text does.
ONE_PRICE = (
    "ALTER TABLE responses_ws_price ADD CONSTRAINT responses_ws_price_apart EXCLUDE USING gist ("
    "(numrange(hashtextextended(currency || chr(31) || model || chr(31) || service_tier || chr(31) || component"
    " || chr(31) || min_context::text, 0)::numeric, hashtextextended(currency || chr(31) || model || chr(31)"
    " || service_tier || chr(31) || component || chr(31) || min_context::text, 0)::numeric, '[]')) WITH &&,"
    " tstzrange(valid_from, valid_to) WITH &&) WHERE (withdrawn_at IS NULL)"
)
# Looked at when the transaction commits: by then all postings of an entry are there. Those of 0 move no sum.
BALANCED = [
    "CREATE FUNCTION responses_ws_balanced() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF (SELECT sum(amount_nano) FROM responses_ws_posting WHERE journal_id = NEW.journal_id) <> 0 THEN"
    " RAISE EXCEPTION 'the postings of entry % do not sum to 0', NEW.journal_id USING ERRCODE = 'check_violation';"
    " END IF; RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER responses_ws_balanced AFTER INSERT ON responses_ws_posting DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW WHEN (NEW.amount_nano <> 0) EXECUTE FUNCTION responses_ws_balanced()",
]


def _on_postgresql() -> tuple[list[str], list[str]]:
    triggers = [
        _postgresql_trigger(f"{table}_frozen", "UPDATE", _all(_is_changed(columns, "IS DISTINCT FROM"), when), message)
        for table, columns, when, message in FROZEN
    ]
    triggers += [
        _postgresql_trigger(f"{table}_kept", "DELETE", _all(NOT_SAID, when), message.replace("changed", "deleted"))
        for table, when, message in KEPT
    ]
    of_old, of_new = IS_SENT.format(row="OLD"), IS_SENT.format(row="NEW")
    triggers += [
        _postgresql_trigger("invoice_sent", "UPDATE", IS_DRAFT_AGAIN, DRAFT_AGAIN),
        _postgresql_trigger("invoiceline_added", "INSERT", of_new, SENT),
        _postgresql_trigger("invoiceline_moved", "UPDATE", f"{of_old} OR {of_new}", SENT),
        _postgresql_trigger("invoiceline_kept", "DELETE", _all(NOT_SAID, of_old), SENT),
    ]
    create = [statement for creates, _drops in triggers for statement in creates]
    drop = [statement for _creates, drops in triggers for statement in drops]
    drop += [
        "DROP TRIGGER IF EXISTS responses_ws_balanced ON responses_ws_posting",
        "DROP FUNCTION IF EXISTS responses_ws_balanced()",
        "ALTER TABLE responses_ws_price DROP CONSTRAINT IF EXISTS responses_ws_price_apart",
    ]
    return [*create, *BALANCED, ONE_PRICE], drop


STATEMENTS = {"sqlite": _on_sqlite, "postgresql": _on_postgresql}


def install(_apps, schema_editor):
    """Put the guards up, those that stand included."""
    create, drop = STATEMENTS.get(schema_editor.connection.vendor, lambda: ([], []))()
    for statement in (*drop, *create):
        schema_editor.execute(statement, params=None)


def remove(_apps, schema_editor):
    _create, drop = STATEMENTS.get(schema_editor.connection.vendor, lambda: ([], []))()
    for statement in drop:
        schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    dependencies = [("responses_ws", "0001_initial")]

    operations = [migrations.RunPython(install, remove, elidable=False)]
