"""Whether what bills is alive is read off the tables, by whichever process."""

from datetime import timedelta

import pytest
from django.utils import timezone

from responses_ws import tasks
from responses_ws.billing import pulse
from responses_ws.models import Heartbeat

from .rows import NOON, make_record

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("ended", "beat", "late", "silent"),
    [
        pytest.param(None, None, False, False, id="nothing was ever heard"),
        pytest.param(timedelta(seconds=60), timedelta(seconds=120), False, False, id="just in time"),
        pytest.param(timedelta(seconds=61), timedelta(seconds=1), True, False, id="usage waits"),
        pytest.param(timedelta(seconds=1), timedelta(seconds=121), False, True, id="beat is silent"),
    ],
)
def test_billing_stands_when_usage_waits_or_beat_is_silent(
    ended: timedelta | None, beat: timedelta | None, late: bool, silent: bool
) -> None:
    if ended is not None:
        make_record(ended_at=NOON - ended)
    if beat is not None:
        Heartbeat.objects.create(name=Heartbeat.BEAT, at=NOON - beat)

    found = pulse.take(NOON)

    assert (found.is_late, found.is_silent) == (late, silent)
    assert (found.waiting, found.silence) == (ended, beat)


def test_beat_is_heard_through_the_task_that_only_it_asks_for() -> None:
    for _ in range(2):
        tasks.reap()

    assert Heartbeat.objects.get().name == Heartbeat.BEAT
    found = pulse.take(timezone.now()).silence
    assert found is not None and found < timedelta(seconds=30)
