"""``moderation``: what a client asks to know of its input and of the answer, and what it is told."""

from typing import Any, Literal

import msgspec

JsonObject = dict[str, Any]

Mode = Literal["score", "block"]


class ModerationSide(msgspec.Struct, kw_only=True):
    """What becomes of one side when it is flagged."""

    mode: Mode
    """``score``: it is told. ``block``: input is not answered, and an answer ends as ``incomplete``."""


class ModerationPolicy(msgspec.Struct, kw_only=True):
    """Of both sides; without it they are scored."""

    input: ModerationSide | None = None
    output: ModerationSide | None = None


class ModerationConfig(msgspec.Struct, kw_only=True):
    """Which moderation model is to look at a request and its answer.

    Source: the types of the official SDK.
    """

    model: str
    policy: ModerationPolicy | None = None

    def blocks(self, side: Literal["input", "output"]) -> bool:
        """Whether what is flagged on this side is not to pass."""
        policy: ModerationSide | None = getattr(self.policy, side) if self.policy is not None else None
        return policy is not None and policy.mode == "block"


def moderation_result(
    *,
    model: str,
    flagged: bool,
    categories: dict[str, bool],
    category_scores: dict[str, float],
    category_applied_input_types: dict[str, list[str]],
) -> JsonObject:
    """One side of the response's ``moderation``, where it was looked at."""
    return {
        "type": "moderation_result",
        "model": model,
        "flagged": flagged,
        "categories": categories,
        "category_scores": category_scores,
        "category_applied_input_types": category_applied_input_types,
    }


def moderation_error(code: str, message: str) -> JsonObject:
    """The same where it was not."""
    return {"type": "error", "code": code, "message": message}
