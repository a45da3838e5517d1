"""How model families write their answers: one frozen table each."""

from typing import Literal

import msgspec

Body = Literal["json", "xml", "named"]


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a call is written: ``opener head NAME middle ARGUMENTS tail closer``. What the model writes may be spaced
    otherwise; what we write in its stead is exactly this."""

    opener: str = ""
    closer: str = ""
    head: str
    middle: str
    tail: str
    body: Body = "json"
    """``json``: an object that holds name and arguments. ``xml``: ``<function=…><parameter=…>``. ``named``: the name,
    then the arguments; but a JSON object or list where one follows instead."""
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    """Models mix up the two that are in use."""
    separators: str = " \t\r\n"
    """Characters that say nothing behind an opener and between two calls."""
    list_end: str = ""
    """What may follow the last call, before text."""
    is_bare: bool = False
    """A call may begin an answer without an opener. It is one only if it names a tool that was offered."""

    def begun(self, name: str) -> str:
        """A call of this tool up to its arguments, to be said in the model's stead."""
        return f"{self.opener}{self.head}{name}{self.middle}"

    @property
    def ended(self) -> str:
        """What follows the arguments."""
        return f"{self.tail}{self.closer}"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What is markup in the answers of a family of models.

    Line feeds beside a marker are scaffold, as many as there are: the chat templates of these families write them there
    and strip them from what they are given, so text without them renders to the ids that were sampled.
    """

    think: tuple[str, str] | None = None
    """Opener and closer of reasoning."""
    call: CallForm | None = None


_THINK = ("<think>", "</think>")
_HERMES = CallForm(
    opener="<tool_call>", closer="</tool_call>", head='\n{"name": "', middle='", "arguments": ', tail="}\n"
)
_QWEN_CODER = CallForm(
    opener="<tool_call>", closer="</tool_call>", head="\n<function=", middle=">\n", tail="</function>\n", body="xml"
)
_LLAMA3 = CallForm(
    opener="<|python_tag|>",
    head='{"name": "',
    middle='", "parameters": ',
    tail="}",
    separators=" \t\r\n;",
    is_bare=True,
)
_MISTRAL = CallForm(
    opener="[TOOL_CALLS]",
    head="",
    middle="[ARGS]",
    tail="",
    body="named",
    separators=" \t\r\n[],",
    list_end="]",
)
_MISTRAL_LIST = msgspec.structs.replace(_MISTRAL, head='[{"name": "', middle='", "arguments": ', tail="}]")

FAMILIES: dict[str, Family] = {
    "plain": Family(),
    "think": Family(think=_THINK),
    "hermes": Family(call=_HERMES),
    "think-hermes": Family(think=_THINK, call=_HERMES),
    "qwen-coder": Family(call=_QWEN_CODER),
    "think-qwen-coder": Family(think=_THINK, call=_QWEN_CODER),
    "llama3": Family(call=_LLAMA3),
    "mistral": Family(call=_MISTRAL),
    "mistral-list": Family(call=_MISTRAL_LIST),
    "think-mistral": Family(think=("[THINK]", "[/THINK]"), call=_MISTRAL),
}
"""By the name that a model's settings give."""
