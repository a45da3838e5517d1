"""Prepared INSERT and UPDATE statements for the rows that every turn writes.

The ORM builds its SQL anew each time: several times the cost of running it, paid under the interpreter's lock while
other turns want to go on. Values pass through the model's fields all the same, so every backend gets its own types.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from django.db import InterfaceError, OperationalError, connection, connections
from django.db.models import AutoField, QuerySet

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


_PARAMETERS = 30_000
"""Of one statement. SQLite takes 32,766."""


def add(model: Any, keys: tuple[str, ...], rows: Mapping[tuple[Any, ...], Mapping[str, float]]) -> None:
    """Add numbers to rows, which are made where they are missing: one upsert, in the order of the keys.

    Args:
        keys: fields that are unique together, by ``attname``.
        rows: by the values of the keys, the numbers to add by field name; the other columns have a database default.
    """
    if not rows:
        return
    names = tuple(sorted({name for numbers in rows.values() for name in numbers}))
    fields, conflict = _columns(model, keys)
    quote = connection.ops.quote_name
    table = quote(model._meta.db_table)
    # Not by `_columns`, which would remember every set of names that ever came together.
    added = [quote(model._meta.get_field(name).column) for name in names]
    changes = ", ".join(f"{column} = {table}.{column} + excluded.{column}" for column in added)
    row = f"({', '.join(['%s'] * (len(keys) + len(names)))})"
    statement = (
        f"INSERT INTO {table} ({', '.join([conflict, *added])}) VALUES {{}} "  # noqa: S608
        f"ON CONFLICT ({conflict}) DO UPDATE SET {changes}"
    )
    # In a fixed order: transactions that share some wait for each other, and never in a circle.
    ordered = sorted(rows.items())
    size = _PARAMETERS // (len(keys) + len(names))
    for first in range(0, len(ordered), size):
        some = ordered[first : first + size]
        values: list[Any] = []
        for key, numbers in some:
            values += map(_value, fields, key)
            values += (numbers.get(name, 0) for name in names)
        with connection.cursor() as cursor:
            cursor.execute(statement.format(", ".join([row] * len(some))), values)


def insert_from(model: Any, rows: QuerySet[Any]) -> int:
    """Insert what a query gives, within the database. Returns how many rows.

    Args:
        rows: of annotations alone, each named after the column that it is for, with ``to_`` before it.
    """
    query, parameters = rows.query.sql_with_params()
    quote = connection.ops.quote_name
    names = [*rows.query.annotation_select]
    columns = ", ".join(quote(name.removeprefix("to_")) for name in names)
    given = ", ".join(f"given.{quote(name)}" for name in names)
    table = quote(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {given} FROM ({query}) given", parameters)  # noqa: S608
        return cursor.rowcount


def stop_writers(*models: Any) -> None:
    """Let nobody else write to these tables until the transaction ends, in which nothing was read yet.

    Whoever writes to several of them comes to them in the order given. SQLite has one writer at a time anyway.
    """
    if connection.vendor == "postgresql":
        tables = ", ".join(connection.ops.quote_name(model._meta.db_table) for model in models)
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")


def _values(model: Any, changes: Mapping[str, Any], where: Mapping[str, Any]) -> list[Any]:
    return [
        _value(field, given[name])
        for given in (changes, where)
        for field, name in zip(_columns(model, tuple(given))[0], given, strict=True)
    ]


def _value(field: Any, value: Any) -> Any:
    return field.get_db_prep_save(value, connection)


def lock(records, using: str, *, skips: bool = True):
    """The records, held until the end of the transaction; with ``skips`` without those that somebody else holds."""
    features = connections[using].features
    if not features.has_select_for_update:
        return records
    return records.select_for_update(skip_locked=skips and features.has_select_for_update_skip_locked)
