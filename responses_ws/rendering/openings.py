"""How an answer that is not free has to begin, and what it is held to."""

from collections.abc import Mapping
from typing import Any

from responses_ws.protocol.sampling import Constraint

from .base import Ask, Opening
from .parsing import CallForm, Family, schemas_of
from .tokenizer import Hidden, Tokenizer

Schema = Mapping[str, Any]


def opening_for(family: Family, tokenizer: Tokenizer, ask: Ask, *, behind: str) -> Opening:
    """The opening of an answer under this tool choice and format.

    A call that is forced is begun in the model's stead, or by a structural tag where the engine knows these. Its
    arguments are held to their schema where the engine can do so.

    Args:
        behind: what the template writes at the end of the prompt. Reasoning that it has begun is ended first.
    """
    schemas = schemas_of(ask.tools)
    form = family.call
    has_tags = form is not None and form.body == "json" and not form.is_bare and "structural_tag" in ask.constraints
    unthink = _end_of_reasoning(family, behind)
    forced = _forced(ask, schemas) if form is not None else {}
    if forced and form is not None:
        if has_tags:
            constraint = _tags(form, forced, is_forced=True, is_one=_is_one(ask))
            return Opening(_ids(tokenizer, unthink), constraint)
        return _begun(form, forced, tokenizer, ask, unthink)
    # An answer that may be a call cannot be held to the schema of a text.
    may_call = form is not None and schemas and ask.tool_choice != "none"
    if ask.schema is not None and not may_call:
        if "json_schema" in ask.constraints:
            return Opening(_ids(tokenizer, unthink), Constraint("json_schema", ask.schema))
        return Opening()
    if form is not None and has_tags and ask.schemas and ask.tool_choice != "none":
        wanted = {name: ask.schemas.get(name, {"type": "object"}) for name in schemas}
        return Opening((), _tags(form, wanted, is_forced=False, is_one=False))
    return Opening()


def _forced(ask: Ask, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The tools of which one has to be called; none where that is up to the model."""
    if isinstance(ask.tool_choice, Mapping):
        name = ask.tool_choice["function"]["name"]
        return {name: schemas[name]} if name in schemas else {}
    return dict(schemas) if ask.tool_choice == "required" else {}


def _is_one(ask: Ask) -> bool:
    return isinstance(ask.tool_choice, Mapping) or not ask.parallel_tool_calls


def _end_of_reasoning(family: Family, behind: str) -> str:
    if family.think is None or not behind.rstrip().endswith(family.think[0]):
        return ""
    return f"\n{family.think[1]}\n\n"


def _begun(form: CallForm, forced: Mapping[str, Schema], tokenizer: Tokenizer, ask: Ask, unthink: str) -> Opening:
    """The call said up to where the model has a choice."""
    # Where a call may do without an opener, models leave it out.
    opener = "" if form.is_bare else form.opener
    has_schemas = "json_schema" in ask.constraints and form.body != "xml"
    if len(forced) == 1:
        ((name, schema),) = forced.items()
        ids = _ids(tokenizer, unthink + opener + form.head + "\0" + form.middle, name)
        if not has_schemas:
            return Opening(ids)
        return Opening(ids, Constraint("json_schema", dict(schema)), _ids(tokenizer, form.ended))
    if not has_schemas or form.body != "json":
        return Opening(_ids(tokenizer, unthink + opener + form.head))
    key = form.argument_keys[0] if f'"{form.argument_keys[0]}"' in form.middle else form.argument_keys[1]
    calls: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: dict(schema)},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, schema in forced.items()
    ]
    before, brace, _name = form.head.partition("{")
    after = form.tail.partition("}")[2]
    assert brace, "a JSON call begins with an object"
    return Opening(
        _ids(tokenizer, unthink + opener + before),
        Constraint("json_schema", {"anyOf": calls}),
        _ids(tokenizer, after + form.closer),
    )


def _tags(form: CallForm, schemas: Mapping[str, Schema], *, is_forced: bool, is_one: bool) -> Constraint:
    """Source: xgrammar's structural tags, ``triggered_tags``."""
    tags = [
        {
            "type": "tag",
            "begin": form.begun(name),
            "content": {"type": "json_schema", "json_schema": dict(schema)},
            "end": form.ended,
        }
        for name, schema in schemas.items()
    ]
    form_of_answer = {
        "type": "triggered_tags",
        "triggers": [form.opener],
        "tags": tags,
        "at_least_one": is_forced,
        "stop_after_first": is_forced and is_one,
    }
    return Constraint("structural_tag", {"type": "structural_tag", "format": form_of_answer})


def _ids(tokenizer: Tokenizer, text: str, name: str = "") -> tuple[int, ...]:
    """Ids of our own words, in which ``name``, the client's, takes the place of a null character."""
    hidden = Hidden(tokenizer)
    return tuple(tokenizer.encode(text.replace("\0", hidden.cover(name)), hidden))
