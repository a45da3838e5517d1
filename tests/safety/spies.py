"""A classifier that remembers what it was shown, and finds words."""

import asyncio
from collections.abc import Mapping

from responses_ws.safety.base import Action, Capabilities, Classifier, Finding, Material, Span, Verdict


class Spy(Classifier):
    """Finds the words it is given, each with its action, also where one begins in what came before."""

    carries = 20

    def __init__(
        self,
        words: Mapping[str, Action] | None = None,
        *,
        name: str = "spy",
        redacts: bool = False,
        reads_input: bool = True,
        reads_output: bool = False,
        holds_back: int = 0,
        says_where: bool = True,
    ) -> None:
        super().__init__(name, {})
        self.words = dict(words or {})
        self.seen: list[Material] = []
        self.gate: asyncio.Event | None = None
        """Where there is one, it waits for it."""
        self.began = asyncio.Event()
        self.is_down = False
        self.capabilities = Capabilities(
            redacts=redacts, reads_input=reads_input, reads_output=reads_output, holds_back=holds_back
        )
        self._says_where = says_where

    async def check(self, material: Material) -> Verdict:
        self.seen.append(material)
        self.began.set()
        if self.is_down:
            raise ConnectionError("down")
        if self.gate is not None:
            await self.gate.wait()
        return Verdict(list(self._findings(material)))

    def _findings(self, material: Material):
        before = material.before
        for index, passage in enumerate(material.passages):
            for word, action in self.words.items():
                text = before + passage.text
                at = text.find(word)
                while at >= 0:
                    start, end = at - len(before), at - len(before) + len(word)
                    if end > 0:
                        spans = (Span(index, max(start, 0), end),) if self._says_where else ()
                        yield Finding(word, action, spans=spans)
                    at = text.find(word, at + 1)
            before = (before + passage.text)[-self.carries :]

    @property
    def characters(self) -> int:
        """What it had to read, in all."""
        return sum(len(one.before) + sum(len(passage.text) for passage in one.passages) for one in self.seen)

    @property
    def texts(self) -> list[str]:
        """The new texts it was shown, in order."""
        return [passage.text for one in self.seen for passage in one.passages]
