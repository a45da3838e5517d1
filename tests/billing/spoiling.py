"""For tests that spoil the books on purpose, past what the database would let them."""

from importlib import import_module

from django.db import connection

guards = import_module("responses_ws.migrations.0002_guards")


def take_guards_down():
    """Until the test is rolled back: so not in one with ``transaction=True``, and before its first row."""
    assert connection.in_atomic_block
    _create, drop = guards.STATEMENTS[connection.vendor]()
    with connection.cursor() as cursor:
        for statement in drop:
            cursor.execute(statement)


def delete_entry(journal):
    """Without postings; as a person would who has to."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL responses_ws.may_delete = 'on'")
    journal.delete()
