"""Signals for host projects. We send them and never listen to ourselves.

They are sent after the commit they tell of, from a thread of the database pool: a receiver may use the ORM, and a
slow one delays nobody's turn. An exception in a receiver is logged.
"""

from django.dispatch import Signal

turn_finished = Signal()
"""A turn has ended and its usage record is durable, not yet billed.

Keyword arguments: ``response_id`` (str), ``project_id`` (int), ``status`` (a ``UsageRecord.Status``), ``usage``
(``responses_ws.protocol.usage.Usage``).
"""
