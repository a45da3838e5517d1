"""The contract of a classifier: told what is new, answers what it finds there."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

Side = Literal["input", "output"]
Action = Literal["flag", "redact", "refuse"]
"""What a finding wants done: only noted; taken out of the text; the input not answered, or the output cut there."""


class Passage(msgspec.Struct, frozen=True, gc=False):
    """One text of what is new: a part of a message, the output of a tool, a piece of an answer."""

    text: str
    source: str
    """Whose it is: ``user``, ``assistant``, ``system``, ``developer``, ``instructions``, ``tool`` (outputs and
    arguments) or ``reasoning``."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Where something was found: characters ``start`` to ``end`` of the passage with that index."""

    passage: int
    start: int
    end: int


class Finding(msgspec.Struct, frozen=True):
    """Something that should not pass unnoticed. What is to be redacted has spans."""

    category: str
    """A short name for people, at most 100 characters; no content."""
    action: Action = "flag"
    score: float | None = None
    """How sure the classifier is, from 0 to 1, where it says that."""
    spans: tuple[Span, ...] = ()
    """Where. Without one it is about all that was shown, which then is not shown again as what came before."""


class Score(msgspec.Struct, frozen=True):
    """What a moderation model says of a text, for clients that ask for it."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]

    def joined(self, other: "Score") -> "Score":
        """Of both texts the worse."""
        scores = dict(self.category_scores)
        for category, score in other.category_scores.items():
            scores[category] = max(score, scores.get(category, 0.0))
        categories = dict(self.categories)
        for category, is_flagged in other.categories.items():
            categories[category] = is_flagged or categories.get(category, False)
        applied = self.category_applied_input_types | other.category_applied_input_types
        return Score(self.flagged or other.flagged, categories, scores, applied)


class Verdict(msgspec.Struct, frozen=True):
    """What a classifier says of one `Material`."""

    findings: Sequence[Finding] = ()
    score: Score | None = None


CLEAN = Verdict()


class Material(msgspec.Struct, frozen=True):
    """What is to be looked at."""

    side: Side
    passages: Sequence[Passage]
    """What is new, in order."""
    before: str
    """The last ``carries`` characters that came before on this side of the chain, joined without a space: what
    began there may end here."""
    project_id: int
    model: str


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a classifier does."""

    redacts: bool = False
    """It may change the input. Then it runs before rendering, and the engine waits for it."""
    reads_input: bool = True
    reads_output: bool = False
    """It looks at answers, too. Then they leave later by the next two."""
    holds_back: int = 0
    """Characters at the end of an unfinished answer that stay here after it has looked: they may be the beginning of
    something. An answer that ends is told to its end."""
    output_step: int = 1
    """Characters of an answer that make it worth another look. They stay here, too, until it has looked."""


class Classifier(ABC):
    """Looks at what is new in a turn, and at nothing else.

    One instance a process, shared by all turns; ``check`` may run many times at once. It is called off the way to the
    engine: beside rendering and prefill, and the first output waits for it. It may take as long as its time limit,
    which the pipeline holds it to; so may an answer that streams, which is looked at piece by piece.

    An instance remembers nothing between two calls. What it carries along a chain is declared in ``carries``, and is
    given to it: so forks have their own, and a chain that is read back from the database has it again.

    Raising anything means "I cannot say". What then happens is the setting ``FAIL`` of its entry, never its own doing:
    it must not answer "nothing found" when it could not look.
    """

    carries: ClassVar[int] = 0
    """Characters of what came before that it wants to see again."""
    capabilities = Capabilities()
    moderation_model: str | None = None
    """The name under which clients ask for its scores (``moderation.model``); its verdicts then have a ``score``."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Does no IO. Raises ValueError: an option is wrong, said in a sentence that names it."""
        self.name = name

    def capabilities_for(self, project_id: int) -> Capabilities:
        """What it does for the turns of this project; asked once a turn, answered at once."""
        return self.capabilities

    @abstractmethod
    async def check(self, material: Material) -> Verdict:
        """What is found. A finding on input that wants it redacted needs ``redacts``; on output it always may.

        In an answer the characters that are held back are seen again in the next call: what is found in them twice
        is noted once.
        """

    async def aclose(self) -> None:
        """Give everything back. Idempotent; it may be used again afterwards."""
