"""Celery's door: one function called per task.

Celery is a wake-up, never the memory: tasks name no row and take what the tables say is due. Losing a message, or
delivering it three times, changes nothing.
"""

import logging

from celery import shared_task
from django.utils import timezone

from responses_ws.billing import alerts, credits, deliveries, invoices, ledger, pulse
from responses_ws.billing import reconcile as reconciling
from responses_ws.runtime import watchdog
from responses_ws.runtime.faults import faultpoint
from responses_ws.serving.replay import replay
from responses_ws.stores import pruning

logger = logging.getLogger(__name__)

watchdog.watch_workers()


@shared_task(name="responses_ws.bill_batch", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def bill_batch() -> None:
    """Bill what has ended and is not yet in the ledger."""
    faultpoint("sweep.before")
    ledger.bill_all()
    faultpoint("sweep.after")


@shared_task(name="responses_ws.reap", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def reap() -> None:
    """Close the usage records of processes that died; first as their journals on this machine say."""
    pulse.beat_was_heard()
    replay()
    ledger.reap()


@shared_task(name="responses_ws.expire_credit", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def expire_credit() -> None:
    """Write off what is left of credit that has expired."""
    credits.expire()


# A month of many million responses takes minutes. Who comes meanwhile finds it held, and then done.
@shared_task(
    name="responses_ws.invoice", ignore_result=True, acks_late=True, reject_on_worker_lost=True, time_limit=3600
)
def invoice() -> None:
    """Draft what the last months cost, and finalise drafts whose grace is over."""
    invoices.make_drafts()
    invoices.finalize_due()


@shared_task(name="responses_ws.alert", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def alert() -> None:
    """Tell people which parts of budgets are spent."""
    alerts.tell()


@shared_task(name="responses_ws.check_budgets", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def check_budgets() -> None:
    """Notice what a worker that died behind its commit has not."""
    alerts.notice()


@shared_task(name="responses_ws.deliver", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def deliver() -> None:
    """Tell other billing systems what is new in the ledger."""
    deliveries.deliver()


# May take longer than Redis waits for a worker: acknowledged at once, so that it is not begun again meanwhile.
@shared_task(name="responses_ws.reconcile", ignore_result=True, time_limit=3600)
def reconcile() -> None:
    """Look whether the books agree, for the dashboard; every difference is logged."""
    started_at = timezone.now()
    differences = reconciling.reconcile(started_at)
    for difference in differences:
        logger.error("The books do not agree: %s", difference)
    reconciling.note(started_at, differences)


@shared_task(name="responses_ws.prune", ignore_result=True, acks_late=True, reject_on_worker_lost=True)
def prune() -> None:
    """Delete what nobody can use any more: expired responses with their content, and so on."""
    pruning.prune()
