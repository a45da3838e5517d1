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

budget_alert = Signal()
"""A part of a budget is spent. Once for each part and window; again only where the process died behind telling it.

Keyword arguments: ``alert_id`` (int), ``budget_id`` (int), ``organization_id`` (int), ``percent`` (int: the part),
``window_start`` (datetime), ``spent_nano`` and ``limit_nano`` (int, of ``currency``: str). Sent by a Celery worker.
"""

content_flagged = Signal()
"""A classifier has found something, and the flag for it is durable.

Keyword arguments: ``response_id`` (str; of items added to a conversation, its id), ``project_id`` (int),
``api_key_id`` (int or None), ``model`` (str), ``side`` (``"input"`` or ``"output"``), ``classifier`` (its name),
``category`` (str), ``action`` (``"flag"``, ``"redact"`` or ``"refuse"``: what was done), ``score`` (float or None). No
content.
"""
