"""The HTTP endpoints. Plain DRF views over the async core, which runs on the server's own loop."""

from functools import partial
from typing import Any

import msgspec
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from responses_ws.engines.registry import registry
from responses_ws.protocol.compaction import decode_compact_request
from responses_ws.protocol.errors import InvalidRequest, ModelNotFound, NotFound
from responses_ws.protocol.ids import is_well_formed
from responses_ws.protocol.items import listed
from responses_ws.protocol.request import decode_request
from responses_ws.runtime import bus, dbpool
from responses_ws.serving import background
from responses_ws.serving.admission import Principal, Ticket
from responses_ws.serving.arrival import may_have_come
from responses_ws.serving.compaction import compact
from responses_ws.serving.context import Asked
from responses_ws.serving.counting import count_input
from responses_ws.stores import events, rows
from responses_ws.stores.base import StoredChain
from responses_ws.stores.forgetting import forgetting

from .base import ApiView, principal_of, within_rates
from .bodies import read_body
from .control import forget_responses
from .exceptions import json_response
from .pages import page_asked, page_of
from .sse import answer_once, answer_turn, stream


class ResponsesView(ApiView):
    """``POST /v1/responses``: JSON or, with ``stream``, server-sent events."""

    async def post(self, request: HttpRequest) -> HttpResponseBase:
        principal = await principal_of(request)
        body = await read_body(request)
        asked = decode_request(body)
        key = request.headers.get("Idempotency-Key")
        transport = "sse" if asked.stream else "http"
        if key is not None:
            return await within_rates(principal, transport, partial(answer_once, principal, asked, key=key, body=body))
        return await within_rates(principal, transport, partial(answer_turn, principal, asked))


class CompactView(ApiView):
    """``POST /v1/responses/compact``."""

    async def post(self, request: HttpRequest) -> HttpResponseBase:
        principal = await principal_of(request)
        asked = decode_compact_request(await read_body(request))

        async def answer(ticket: Ticket) -> HttpResponse:
            return json_response(await compact(principal, asked, ticket))

        return await within_rates(principal, "compact", answer)


class InputTokensView(ApiView):
    """``POST /v1/responses/input_tokens``: what a turn's input would count."""

    async def post(self, request: HttpRequest) -> HttpResponse:
        principal = await principal_of(request)
        asked_for = decode_request(await read_body(request))
        asked = Asked(principal=principal, request=asked_for, transport="http")
        return json_response({"object": "response.input_tokens", "input_tokens": await count_input(asked)})


async def _stored(principal: Principal, response_id: str) -> StoredChain:
    stored = None
    if is_well_formed(response_id):
        stored = await dbpool.run(rows.load, principal.project_id, response_id)
        if stored is None and await may_have_come(principal.project_id, response_id):
            stored = await dbpool.run(rows.load, principal.project_id, response_id)
    if stored is None:
        raise _response_not_found(response_id)
    return stored


class ResponseView(ApiView):
    """``GET`` and ``DELETE /v1/responses/{id}``."""

    async def get(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        principal = await principal_of(request)
        stored = await _stored(principal, response_id)
        if request.GET.get("stream") != "true":
            return json_response(stored.response)
        if not await dbpool.run(events.is_logged, principal.project_id, response_id):
            raise InvalidRequest(
                "Only responses made with 'background' and 'stream' can be streamed again.",
                code="invalid_request_error",
                param="stream",
            )
        return await stream(events.follow(principal.project_id, response_id, _starting_after(request)))

    async def delete(self, request: HttpRequest, response_id: str) -> HttpResponse:
        project_id = (await principal_of(request)).project_id
        deleted = None
        if is_well_formed(response_id):
            deleted = await dbpool.run(_delete, project_id, response_id)
            if deleted is None and await may_have_come(project_id, response_id):
                deleted = await dbpool.run(_delete, project_id, response_id)
        if deleted is None:
            raise _response_not_found(response_id)
        # Here at once, in other processes as soon as they hear of it.
        forget_responses(project_id, deleted.response_ids)
        await forgetting.tell(project_id, deleted)
        return json_response({"id": response_id, "object": "response", "deleted": True})


@transaction.atomic
def _delete(project_id: int, response_id: str) -> rows.Deleted | None:
    deleted = rows.delete(project_id, response_id)
    if deleted is not None:
        bus.tell("responses_deleted", project_id=project_id, **msgspec.to_builtins(deleted, str_keys=True))
    return deleted


def _starting_after(request: HttpRequest) -> int:
    """The last number that the client has seen; -1 for none."""
    given = request.GET.get("starting_after")
    if given is None:
        return -1
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise InvalidRequest(f"Invalid value: {given[:100]!r}; expected a sequence number.", param="starting_after")
    return int(given)


class CancelView(ApiView):
    """``POST /v1/responses/{id}/cancel``: only for background responses."""

    async def post(self, request: HttpRequest, response_id: str) -> HttpResponse:
        principal = await principal_of(request)
        response = None
        if is_well_formed(response_id):
            response = await background.cancel(principal.project_id, response_id)
        if response is None:
            raise _response_not_found(response_id)
        return json_response(response)


class InputItemsView(ApiView):
    """``GET /v1/responses/{id}/input_items``: the context that a response was made from."""

    async def get(self, request: HttpRequest, response_id: str) -> HttpResponse:
        principal = await principal_of(request)
        stored = await _stored(principal, response_id)
        items = [listed(item) for item in stored.items[: stored.input_end]]
        return json_response(page_of(items, page_asked(request.GET)))


def _response_not_found(response_id: str) -> NotFound:
    error = NotFound(f"Response with id '{response_id}' not found.")
    error.code = None
    return error


class ModelsView(ApiView):
    """``GET /v1/models``."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return json_response({"object": "list", "data": await _models(await principal_of(request))})


class ModelView(ApiView):
    """``GET /v1/models/{id}``."""

    async def get(self, request: HttpRequest, model: str) -> HttpResponse:
        for known in await _models(await principal_of(request)):
            if known["id"] == model:
                return json_response(known)
        raise ModelNotFound(model)


async def _models(principal: Principal) -> list[dict[str, Any]]:
    served = await registry.list_models()
    return [
        {"id": name, "object": "model", "created": 0, "owned_by": engine}
        for name, engine in served
        if principal.may_use(name)
    ]
