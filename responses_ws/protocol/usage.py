"""Token counts of one response."""

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a response consumed, in tokens.

    ``input_tokens`` counts the whole context, not only what this request sent. Cached tokens are part of
    ``input_tokens`` and reasoning tokens part of ``output_tokens``: partitions, never additions.

    Source: OpenAI ``ResponseUsage``.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Part of ``input_tokens``: read from the engine's prefix cache."""
    cache_write_tokens: int = 0
    """Part of ``input_tokens``: written to a paid cache."""
    reasoning_tokens: int = 0
    """Part of ``output_tokens``."""
    estimated: bool = False
    """True when the engine reported nothing and we counted pieces instead. Not sent on the wire."""

    def wire(self) -> dict[str, Any]:
        """The ``usage`` object of a Response."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }

    def plus(self, other: "Usage") -> "Usage":
        """Both together: a response of several engine calls."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )

    def clamped(self) -> "Usage":
        """The same with impossible claims cut back: nothing negative, no part larger than its whole."""
        input_tokens = max(self.input_tokens, 0)
        output_tokens = max(self.output_tokens, 0)
        cached = min(max(self.cached_tokens, 0), input_tokens)
        return Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached,
            cache_write_tokens=min(max(self.cache_write_tokens, 0), input_tokens - cached),
            reasoning_tokens=min(max(self.reasoning_tokens, 0), output_tokens),
            estimated=self.estimated,
        )
