"""The shapes of what steers a model: tools, the choice among them, formats."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .shapes import OneOf, shape

JsonObject = dict[str, Any]

ToolName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$")]


class FunctionTool(Struct, kw_only=True, tag_field="type", tag="function"):
    """A function of the client's."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """True if left out."""


class CustomTool(Struct, kw_only=True, tag_field="type", tag="custom"):
    """A tool of the client's that takes free text. A grammar in ``format`` is not enforced."""

    name: ToolName
    description: str | None = None
    format: JsonObject | None = None


class NamespaceTool(Struct, kw_only=True, tag_field="type", tag="namespace"):
    """Tools under a common name. Their calls carry it as ``namespace``."""

    name: ToolName
    description: str | None = None
    tools: list[Annotated[JsonObject, shape("FunctionTool", "CustomTool", "HostedTool")]] | None = None


class HostedTool(Struct, kw_only=True):
    """A tool of any other type (``web_search``, ``mcp``, …): run here if it is configured, else accepted and not
    offered to the model."""

    type: Annotated[str, Meta(extra_json_schema={"not": {"enum": ["function", "custom", "namespace"]}})]


Tool = OneOf("Something that a model may call.", FunctionTool, CustomTool, NamespaceTool, HostedTool)


class EchoedFunctionTool(Struct, kw_only=True, tag_field="type", tag="function"):
    """A function tool with all of its keys filled in."""

    name: str
    description: str | None
    parameters: JsonObject | None
    strict: bool


EchoedTool = OneOf("A tool as the response gives it back.", EchoedFunctionTool, CustomTool, NamespaceTool, HostedTool)


class ChosenFunction(Struct, kw_only=True, tag_field="type", tag="function"):
    """This function of ``tools`` is to be called."""

    name: ToolName


class ChosenCustomTool(Struct, kw_only=True, tag_field="type", tag="custom"):
    """This custom tool of ``tools`` is to be called."""

    name: ToolName


class AllowedTool(Struct, kw_only=True):
    """Names one of ``tools``."""

    type: str
    name: str | None = None


class AllowedTools(Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """The model is offered no others."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class OtherChoice(Struct, kw_only=True):
    """A hosted tool, by its type; an MCP server by its ``server_label``, too, or one tool of it by ``name``. Without
    effect where none such is run here."""

    type: Annotated[str, Meta(extra_json_schema={"not": {"enum": ["function", "custom", "allowed_tools"]}})]


ToolChoice = OneOf("Which tools may, or must, be called.", ChosenFunction, ChosenCustomTool, AllowedTools, OtherChoice)


class PlainText(Struct, kw_only=True, tag_field="type", tag="text"):
    """Text without a form."""


class JsonText(Struct, kw_only=True, tag_field="type", tag="json_object"):
    """Some JSON object."""


class JsonSchemaText(Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    schema: JsonObject
    strict: bool | None = None
    description: str | None = None


TextFormat = OneOf("The form that the text is to have.", PlainText, JsonText, JsonSchemaText)


class TextConfig(Struct, kw_only=True):
    """How the text is to be."""

    format: Annotated[JsonObject, shape("TextFormat")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct, kw_only=True):
    """How much a model is to think, and what of it is shown."""

    effort: str | None = None
    """``none``, ``minimal``, ``low``, ``medium``, ``high``, ``xhigh``, ``max``, or a word of the model's own."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The old name of ``summary``."""
