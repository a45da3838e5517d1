"""The contract of a renderer: messages → token ids for one model, and what it samples → deltas."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from responses_ws.protocol.sampling import Constraint, ConstraintKind, Delta, FinishReason

from .chat import ChatPrompt
from .tokens import TokenLog

Path = Literal["append", "rewind", "full"]
_MOST_OPENING = 32  # ids; what a template opens an answer with is shorter


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt depends on beside its messages and instructions."""

    tools: bytes | None = None
    """JSON array of chat-completions tools, or None."""
    tool_choice: str | Mapping[str, Any] | None = None
    """Chat-completions form: "auto", "none", "required" or ``{type, function: {name}}``."""
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    schema: dict[str, Any] | None = None
    """A JSON schema that the whole answer has to fit."""
    schemas: Mapping[str, dict[str, Any]] = {}
    """Parameters of ``strict`` tools, by offered name."""
    constraints: frozenset[ConstraintKind] = frozenset()
    """What the engine can hold an answer to."""


class Opening(msgspec.Struct, frozen=True):
    """How an answer that is not free begins, and what it is held to."""

    ids: tuple[int, ...] = ()
    """Said in the model's stead, as its first tokens: a call's marker, for instance."""
    constraint: Constraint | None = None
    closing: tuple[int, ...] = ()
    """What the constraint keeps the model from saying itself at its end: added to the log once it has finished."""


class Draft(ABC):
    """A prompt about to be rendered: first decided, then made, then appended."""

    path: Path
    """``append``: only what is new is rendered. ``rewind``: the log is cut back a little first. ``full``: from zero."""
    kept_tokens: int
    """Ids of the chain's log that stay as they are."""
    size: int
    """Bytes of messages to be rendered: whether `make` is worth a thread."""

    @abstractmethod
    def make(self) -> None:
        """Run template and tokenizer. May be called in any thread; gives the interpreter lock free where it is long.

        Raises:
            InvalidRequest: the model's template refuses these messages.
        """

    @abstractmethod
    def log(self) -> TokenLog:
        """The rendered prompt, up to the opening of the assistant's turn. On the event loop, after `make`."""


class EngineDraft(Draft):
    """Waits for the ids that the engine makes: `take` them, and it is made."""

    path: Path = "full"
    kept_tokens = 0
    size = 0

    def __init__(self, messages: int, stop_ids: Sequence[int]) -> None:
        self._messages = messages
        self._stop_ids = stop_ids
        self._ids: Sequence[int] = ()

    def take(self, ids: Sequence[int]) -> None:
        """The whole prompt, up to the opening of the assistant's turn."""
        self._ids = ids

    def make(self) -> None:
        pass

    def log(self) -> TokenLog:
        ids = list(self._ids)
        # Behind the end of the turn before it, the answer is opened.
        start = max(len(ids) - _MOST_OPENING, 0)
        ends = [index for index in range(start, len(ids)) if ids[index] in self._stop_ids]
        cut = ends[-1] + 1 if ends else start
        log = TokenLog().extended(ids[:cut], "rendered", messages=self._messages)
        return log.extended(ids[cut:], "opening", messages=self._messages)


class OutputParser(ABC):
    """One answer's ids → deltas, as they come. Markers count only as control tokens, never as text a user typed."""

    reasoning_tokens = 0
    """Ids within reasoning so far."""
    calls = 0
    """Calls begun so far."""
    malformed_calls = 0
    """Calls that could not be read so far: they came out as text, or, begun before that showed, with what there was."""

    @abstractmethod
    def feed(self, ids: Sequence[int], logprobs: Sequence[dict[str, Any]] = ()) -> list[Delta]:
        """What has become sayable. The deltas' counts of tokens need not add up; ids are counted elsewhere."""

    @abstractmethod
    def finish(self, reason: FinishReason) -> list[Delta]:
        """What is left, now that no more comes; no ``Finished``. A call that is whole is ended, one that was cut
        off by ``length`` stays open."""


class Renderer(ABC):
    """Renders for one model and parses its answers. One instance per model and process, for many turns at once.

    Nothing here does IO: files are read by whoever makes it, and what is in them comes with the options.
    """

    file_options: ClassVar[frozenset[str]] = frozenset()
    """Options that are paths. `from_options` gets ``{name of a file: what is in it}``: the file first, then those
    beside it that may belong to it; of a folder those inside."""

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "Renderer":
        """The renderer of a model's ``RENDERER`` in the settings, without ``CLASS``.

        Raises:
            ValueError: an option is wrong; the message begins with its name.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be made from settings")

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """What can be told of them before any file is read. Raises ValueError, as `from_options` does."""

    stop_ids: tuple[int, ...] = ()
    """Any of these ends an answer; the template's own comes first. The one that was sampled stays in the log."""

    @abstractmethod
    def draft(self, prompt: ChatPrompt, ask: Ask) -> Draft:
        """Decide how to render ``prompt``, starting from ``prompt.tokens`` if that still fits. Costs what is new."""

    @property
    def notes(self) -> list[str]:
        """What an operator should know of it, for the log: nothing, as a rule."""
        return []

    def opening(self, ask: Ask) -> Opening:
        """How the answer has to begin under this tool choice and format. The default: it is free."""
        return Opening()

    @abstractmethod
    def parser(self, log: TokenLog, ask: Ask) -> OutputParser:
        """A parser for the answer to ``log``, whose tail decides in which state it begins."""
