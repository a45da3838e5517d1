import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from responses_ws.models import IdempotencyKey
from responses_ws.protocol.errors import Conflict
from responses_ws.runtime import background
from responses_ws.serving.admission import Principal
from responses_ws.serving.idempotency import Claim, claim


async def claim_many(principal: Principal, body: bytes = b"{}") -> tuple[list[Claim], list[Any]]:
    """Claims of one key at the same moment: those who got it, and what the others were told."""
    answers = await asyncio.gather(*(claim(principal, "one", body) for _ in range(8)), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, Claim)], [
        answer for answer in answers if not isinstance(answer, Claim)
    ]


def are_in_use(refusals: list[Any]) -> bool:
    return all(isinstance(error, Conflict) and error.code == "idempotency_key_in_use" for error in refusals)


async def test_of_many_claims_at_once_one_wins(principal: Principal) -> None:
    winners, refusals = await claim_many(principal)

    assert len(winners) == 1 and winners[0].earlier is None
    assert len(refusals) == 7 and are_in_use(refusals)
    assert (await IdempotencyKey.objects.aget()).response_id == winners[0].response_id


async def test_of_many_that_take_over_one_wins(principal: Principal) -> None:
    dead = await claim(principal, "one", b"{}")
    await IdempotencyKey.objects.aupdate(created_at=timezone.now() - timedelta(minutes=2))

    winners, refusals = await claim_many(principal)

    assert len(winners) == 1 and winners[0].response_id != dead.response_id
    assert are_in_use(refusals)


async def test_a_claim_that_was_taken_over_releases_nothing(principal: Principal) -> None:
    slow = await claim(principal, "one", b"{}")
    await IdempotencyKey.objects.aupdate(created_at=timezone.now() - timedelta(minutes=2))
    heir = await claim(principal, "one", b"{}")

    await slow.release()

    assert (await IdempotencyKey.objects.aget()).response_id == heir.response_id


async def test_a_claim_is_released_even_when_the_request_is_cancelled(principal: Principal) -> None:
    claimed = await claim(principal, "one", b"{}")
    releasing = asyncio.create_task(claimed.release())
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    await background.settle()

    assert not await IdempotencyKey.objects.aexists()


async def test_where_there_is_no_api_key_the_project_is_the_scope(
    principal: Principal, other_principal: Principal
) -> None:
    await claim(other_principal, "one", b"{}")
    await claim(principal, "one", b"other")

    with pytest.raises(Conflict):
        await claim(other_principal, "one", b"{}")
