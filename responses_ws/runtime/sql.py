"""Prepared INSERT and UPDATE statements for the rows that every turn writes.

The ORM builds its SQL anew each time: several times the cost of running it, paid under the interpreter's lock while
other turns want to go on. Values pass through the model's fields all the same, so every backend gets its own types.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from django.db import InterfaceError, OperationalError, connection
from django.db.models import AutoField

UNAVAILABLE = (OperationalError, InterfaceError)
"""What Django raises where the database, and not what was asked of it, is the trouble. Worth another try."""


@cache
def _columns(model: Any, names: tuple[str, ...] | None = None) -> tuple[tuple[Any, ...], str]:
    fields: tuple[Any, ...]
    if names is None:
        fields = tuple(field for field in model._meta.concrete_fields if not isinstance(field, AutoField))
    else:
        fields = tuple(model._meta.get_field(name) for name in names)
    return fields, ", ".join(connection.ops.quote_name(field.column) for field in fields)


@cache
def _insert_sql(model: Any) -> str:
    fields, columns = _columns(model)
    table = connection.ops.quote_name(model._meta.db_table)
    # Names are the models' own.
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(['%s'] * len(fields))})"  # noqa: S608


@cache
def _update_sql(model: Any, names: tuple[str, ...], where: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    changes = ", ".join(f"{quote(field.column)} = %s" for field in _columns(model, names)[0])
    conditions = " AND ".join(f"{quote(field.column)} = %s" for field in _columns(model, where)[0])
    return f"UPDATE {quote(model._meta.db_table)} SET {changes} WHERE {conditions}"  # noqa: S608


def insert(model: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert rows given by field ``attname``; what is left out takes the field's default."""
    fields, _ = _columns(model)
    values = [
        [_value(field, row[field.attname] if field.attname in row else field.get_default()) for field in fields]
        for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.executemany(_insert_sql(model), values)


def update(model: Any, changes: Mapping[str, Any], where: Mapping[str, Any]) -> int:
    """Set fields of the rows where all of ``where`` is equal; both by field name. Returns how many rows."""
    with connection.cursor() as cursor:
        cursor.execute(_update_sql(model, tuple(changes), tuple(where)), _values(model, changes, where))
        return cursor.rowcount


def update_many(model: Any, updates: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Many of `update`'s ``(changes, where)``, all with the same names, as one statement: one round trip."""
    changes, where = updates[0]
    values = [_values(model, *update) for update in updates]
    with connection.cursor() as cursor:
        cursor.executemany(_update_sql(model, tuple(changes), tuple(where)), values)


def _values(model: Any, changes: Mapping[str, Any], where: Mapping[str, Any]) -> list[Any]:
    return [
        _value(field, given[name])
        for given in (changes, where)
        for field, name in zip(_columns(model, tuple(given))[0], given, strict=True)
    ]


def _value(field: Any, value: Any) -> Any:
    return field.get_db_prep_save(value, connection)
