"""The contract of a sink: another billing system that is told of every entry of the ledger about usage."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, ClassVar

import msgspec

from responses_ws.models import Organization


class Unavailable(Exception):
    """It could not be told, or nobody knows whether it was: tried again later. No URL and no key in it."""


class Rejected(Exception):
    """It does not want this, now or later: a dead letter at once. The message says what to mend."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the ledger, as a sink is told of it."""

    id: str
    """``usage:<response id>:<version>``, or ``reversal:…`` of that. The same at every try."""
    body: Mapping[str, Any]
    """Who used what, and what it costs; see `responses_ws.billing.deliveries.facts`. All numbers are changes: what
    takes an entry back has them with the opposite sign, so whoever adds up all messages has the sums of the ledger."""
    stripe_customer: str
    """The organisation's, as it is now; empty: none."""


Tell = Callable[[Message], Awaitable[None]]
"""Tells one message. Returns when the receiver has it for sure. Raises Unavailable, Rejected, and what
`responses_ws.runtime.http` raises, which counts as the first."""


class Sink(ABC):
    """Tells somebody, at least once, of each entry. A subclass is named by ``BILLING_SINKS[name]["SINK"]``.

    A message comes again when a process dies behind its sending, so what it is told by has to be idempotent by
    `Message.id`. One instance serves a whole process, from several threads.
    """

    remembers: ClassVar[timedelta | None] = None
    """For how long the receiver knows an id again; None: for ever. What was first tried longer ago, and is not known to
    have arrived, is left to a person."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Args: ``options``: its dict from the settings, without ``SINK``. Raises ValueError: a wrong one."""
        self.name = name

    def wants(self, organization: Organization) -> bool:
        """Whether it is told of what this organisation uses from now on. Corrections go where the entry went."""
        return True

    def lane(self, message: Message) -> str:
        """Messages of one lane are told one after the other; those of different lanes at once."""
        return message.id

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Tell]:
        """What tells the messages of one batch, over connections of its own. Raises what `Tell` does."""
