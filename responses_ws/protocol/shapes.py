"""What is in the JSON objects that we handle as dicts: links from the types that parse and emit to described shapes.

``Annotated[Item, shape("OutputItem")]`` is a dict like any other where it is handled. In the documents it is what the
``*_shapes`` modules say of that name: a struct, or a choice of them. Nothing is ever decoded into those.
"""

from msgspec import Meta, Struct

SCHEMAS = "#/components/schemas/"


def shape(*names: str) -> Meta:
    """A mark for ``Annotated``: the object has this shape, or one of these."""
    references = [{"$ref": SCHEMAS + name} for name in names]
    return Meta(extra_json_schema=references[0] if len(references) == 1 else {"anyOf": references})


class OneOf:
    """A shape that is any one of ``members``, under a name and with a sentence of its own."""

    def __init__(self, description: str, *members: type[Struct]) -> None:
        self.description = description
        self.members = members
