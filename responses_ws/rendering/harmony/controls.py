"""The control tokens of harmony, and what they mark off in a run of ids."""

from collections.abc import Iterator, Sequence

from openai_harmony import HarmonyEncoding, HarmonyError

ASSISTANT = "assistant"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"


class Header:
    """What stands before a message's content: ``assistant to=functions.f<|channel|>commentary json``."""

    __slots__ = ("channel", "recipient", "stray")

    def __init__(self, before_channel: str, behind_channel: str | None) -> None:
        before_channel = before_channel.removeprefix(ASSISTANT)
        words = (behind_channel or "").split()
        self.channel = words[0] if words else None
        self.recipient: str | None = None
        """Whom it is for; None: the user."""
        self.stray = ""
        """What is no header: something that the model has said without one."""
        for word in (*before_channel.split(), *words):
            if word.startswith("to="):
                self.recipient = word[3:] if word[3:] not in (ASSISTANT, "user", "all", "") else None
        if behind_channel is None and self.recipient is None and before_channel.strip():
            self.stray = before_channel


class Controls:
    """Control tokens by what they do."""

    def __init__(self, encoding: HarmonyEncoding) -> None:
        self._encoding = encoding
        self._bytes: dict[int, bytes] = {}
        (self.start,) = self._of("<|start|>")
        (self.channel,) = self._of("<|channel|>")
        (self.message,) = self._of("<|message|>")
        (self.end,) = self._of("<|end|>")
        (self.call,) = self._of("<|call|>")
        (self.answered,) = self._of("<|return|>")
        self.ends = frozenset({self.end, self.call, self.answered})
        self.stops = (self.call, self.answered)
        self.opening = (self.start, *encoding.encode(ASSISTANT))
        """Of the model's turn."""

    def _of(self, name: str) -> list[int]:
        ids: list[int] = self._encoding.encode(name, allowed_special="all")
        return ids

    def bytes_of(self, token_id: int) -> bytes:
        """What a token stands for; nothing for an id that stands for none."""
        found = self._bytes.get(token_id)
        if found is None:
            try:
                text = self._encoding.decode([token_id], errors="surrogateescape")
            except HarmonyError:
                text = ""
            found = self._bytes[token_id] = text.encode(errors="surrogateescape")
        return found

    def text_of(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")

    def header_of(self, ids: Sequence[int]) -> Header:
        """The header in the ids between ``<|start|>`` and ``<|message|>``."""
        if self.channel not in ids:
            return Header(self.text_of(ids), None)
        place = list(ids).index(self.channel)
        return Header(self.text_of(ids[:place]), self.text_of(ids[place + 1 :]))

    def messages_in(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """The runs that ``<|start|>`` begins or one of the ends ends."""
        run: list[int] = []
        for token_id in ids:
            if token_id == self.start and run:
                yield run
                run = []
            run.append(token_id)
            if token_id in self.ends:
                yield run
                run = []
        if run:
            yield run

    def has_final(self, ids: Sequence[int]) -> bool:
        """Whether an answer to the user is among these messages."""
        return any(self._header_in(run).channel == FINAL for run in self.messages_in(ids) if self.message in run)

    def settled(self, ids: Sequence[int], *, forgets_analysis: bool) -> list[int]:
        """The same messages as history has them.

        ``<|return|>`` becomes ``<|end|>``; a message that was cut off is ended, and one that was cut off before its
        content began is left out; and so is analysis, where it is to be forgotten, but for calls that a model makes
        there.

        Source: OpenAI, harmony response format: reasoning output in subsequent sampling.
        """
        settled: list[int] = []
        for run in self.messages_in(ids):
            if self.message not in run:
                continue
            header = self._header_in(run)
            if forgets_analysis and header.channel == ANALYSIS and header.recipient is None:
                continue
            if run[-1] not in self.ends:
                run.append(self.end)
            if run[-1] != self.call:
                run[-1] = self.end if header.recipient is None or header.channel is None else self.call
            settled += run
        return settled

    def _header_in(self, run: Sequence[int]) -> Header:
        place = list(run).index(self.message)
        return self.header_of([token_id for token_id in run[:place] if token_id != self.start])
