"""How deeply a client's JSON may be nested."""

from typing import Any

from .errors import InvalidRequest

MAX_DEPTH = 64
"""Objects and arrays within each other, the body itself included. Real ones, schemas too, stay below 20."""


def check_depth(value: Any, param: str, *, within: int) -> None:
    """Refuse a value that is nested too deeply, being ``within`` so many objects and arrays itself.

    Decoders stop at about a thousand levels, which is more than all that comes behind them can take. A value is
    looked through when it is new, not the whole body each time: tools come again with every turn of a chain.
    """
    level = [value]
    for _ in range(within, MAX_DEPTH + 1):
        # A level at a time, without a call for each value.
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise InvalidRequest("The JSON is nested too deeply.", code="invalid_json", param=param)
