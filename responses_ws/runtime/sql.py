"""Prepared statements for the rows that every turn writes.

The ORM builds its SQL anew each time: several times the cost of running it, paid under the interpreter's lock while
other turns want to go on. Values pass through the model's fields all the same, so every backend gets its own types.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connection, connections
from django.db.models import NOT_PROVIDED, AutoField, QuerySet

UNAVAILABLE = (OperationalError, InterfaceError)
"""What Django raises where the database, and not what was asked of it, is the trouble. Worth another try."""


class _Column(NamedTuple):
    field: Any
    name: str
    """By which a value is given: the field's ``attname``."""
    plain: type | None
    """What the database takes as it is: most values, which then need no look at the field."""
    default: Any
    """As the database takes it; `NOT_PROVIDED` where it is made anew each time."""


_PLAIN: dict[str, type] = {"CharField": str, "TextField": str, "BooleanField": bool, "FloatField": float}
# psycopg is told how wide an integer is.
_PLAIN_IN_SQLITE: dict[str, type] = _PLAIN | dict.fromkeys(
    ("BigAutoField", "BigIntegerField", "PositiveBigIntegerField", "PositiveIntegerField"), int
)


@cache
def _columns(model: Any, names: tuple[str, ...] | None = None) -> tuple[tuple[_Column, ...], str]:
    fields: tuple[Any, ...]
    if names is None:
        fields = tuple(field for field in model._meta.concrete_fields if not isinstance(field, AutoField))
    else:
        fields = tuple(model._meta.get_field(name) for name in names)
    columns = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    return tuple(_column(field) for field in fields), columns


def _column(field: Any) -> _Column:
    plain = _PLAIN_IN_SQLITE if connection.vendor == "sqlite" else _PLAIN
    kind = (field.target_field if field.is_relation else field).get_internal_type()
    is_fixed = not (field.has_default() and callable(field.default))
    default = field.get_db_prep_save(field.get_default(), connection) if is_fixed else NOT_PROVIDED
    return _Column(field, field.attname, plain.get(kind), default)


@cache
def _insert_sql(model: Any, unless: str = "") -> str:
    fields, columns = _columns(model)
    quote = connection.ops.quote_name
    conflict = f" ON CONFLICT ({quote(model._meta.get_field(unless).column)}) DO NOTHING" if unless else ""
    # Names are the models' own.
    values = ", ".join(["%s"] * len(fields))
    return f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({values}){conflict}"  # noqa: S608


@cache
def _update_sql(model: Any, names: tuple[str, ...], where: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    changes = ", ".join(f"{quote(column.field.column)} = %s" for column in _columns(model, names)[0])
    conditions = " AND ".join(f"{quote(column.field.column)} = %s" for column in _columns(model, where)[0])
    return f"UPDATE {quote(model._meta.db_table)} SET {changes} WHERE {conditions}"  # noqa: S608


@cache
def _exists_sql(model: Any, where: tuple[str, ...]) -> str:
    quote = connection.ops.quote_name
    conditions = " AND ".join(f"{quote(column.field.column)} = %s" for column in _columns(model, where)[0])
    return f"SELECT 1 FROM {quote(model._meta.db_table)} WHERE {conditions} LIMIT 1"  # noqa: S608


def insert(model: Any, rows: Iterable[Mapping[str, Any]], *, unless: str = "") -> int:
    """Insert rows given by field ``attname``; what is left out takes the field's default. Returns how many were new.

    ``unless``: a unique field. Rows whose value is there already are left out.
    """
    columns, here = _columns(model)[0], connections[DEFAULT_DB_ALIAS]
    values = [
        [_value(column, row[column.name], here) if column.name in row else _default(column, here) for column in columns]
        for row in rows
    ]
    with here.cursor() as cursor:
        if len(values) == 1:
            cursor.execute(_insert_sql(model, unless), values[0])
        else:
            cursor.executemany(_insert_sql(model, unless), values)
        return cursor.rowcount


def update(model: Any, changes: Mapping[str, Any], where: Mapping[str, Any]) -> int:
    """Set fields of the rows where all of ``where`` is equal; both by field name. Returns how many rows."""
    here = connections[DEFAULT_DB_ALIAS]
    with here.cursor() as cursor:
        cursor.execute(_update_sql(model, tuple(changes), tuple(where)), _values(model, changes, where, here))
        return cursor.rowcount


def exists(model: Any, where: Mapping[str, Any]) -> bool:
    """Whether there is a row where all of ``where``, by field name, is equal."""
    here = connections[DEFAULT_DB_ALIAS]
    with here.cursor() as cursor:
        cursor.execute(_exists_sql(model, tuple(where)), _values(model, {}, where, here))
        return cursor.fetchone() is not None


def update_many(model: Any, updates: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Many of `update`'s ``(changes, where)``, all with the same names, as one statement: one round trip."""
    changes, where = updates[0]
    here = connections[DEFAULT_DB_ALIAS]
    values = [_values(model, *update, here) for update in updates]
    with here.cursor() as cursor:
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
    columns, conflict = _columns(model, keys)
    here = connections[DEFAULT_DB_ALIAS]
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
            values += (_value(column, value, here) for column, value in zip(columns, key, strict=True))
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


def _values(model: Any, changes: Mapping[str, Any], where: Mapping[str, Any], here: Any) -> list[Any]:
    return [
        _value(column, given[name], here)
        for given in (changes, where)
        for column, name in zip(_columns(model, tuple(given))[0], given, strict=True)
    ]


def _value(column: _Column, value: Any, here: Any) -> Any:
    if type(value) is column.plain or (value is None and column.plain is not None):
        return value
    return column.field.get_db_prep_save(value, here)


def _default(column: _Column, here: Any) -> Any:
    if column.default is not NOT_PROVIDED:
        return column.default
    return column.field.get_db_prep_save(column.field.get_default(), here)


def lock(records, using: str, *, skips: bool = True):
    """The records, held until the end of the transaction; with ``skips`` without those that somebody else holds."""
    features = connections[using].features
    if not features.has_select_for_update:
        return records
    return records.select_for_update(skip_locked=skips and features.has_select_for_update_skip_locked)
