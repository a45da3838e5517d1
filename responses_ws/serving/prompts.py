"""Requests that name a prompt template: what it says put into them."""

from typing import Any

import msgspec

from responses_ws.conf import app_settings
from responses_ws.models import PromptVersion
from responses_ws.protocol.errors import PromptNotFound
from responses_ws.protocol.ids import is_well_formed
from responses_ws.protocol.items import Item, check_media_sizes, input_items
from responses_ws.protocol.prompts import check_prompt, parse_template
from responses_ws.protocol.request import Request
from responses_ws.runtime import dbpool
from responses_ws.runtime.ids import new_id

from .admission import Principal


async def expanded(principal: Principal, request: Request) -> tuple[Request, list[Item]]:
    """The request with what its prompt supplies and it does not say itself; and the messages to put in front.

    Raises:
        ApiError: no such prompt, or its variables are not the ones given.
    """
    prompt = request.prompt
    assert prompt is not None, "only asked where there is one"
    check_prompt(prompt)
    version = await _find(principal.project_id, prompt["id"], prompt.get("version"))
    instructions, messages = parse_template(version.text).filled(prompt.get("variables") or {})
    # Which version was used is told, so that a successor and whoever reads the response know.
    supplied: dict[str, Any] = {**version.defaults, "model": version.model, "instructions": instructions}
    supplied = {name: value for name, value in supplied.items() if value not in (None, "")}
    changes = {name: value for name, value in supplied.items() if getattr(request, name) is None}
    request = msgspec.structs.replace(request, prompt={**prompt, "version": str(version.number)}, **changes)
    limits = app_settings.limits
    check_media_sizes(
        messages, max_image_bytes=limits.max_image_bytes, max_file_bytes=limits.max_file_bytes, within="prompt"
    )
    return request, input_items(messages, new_id, max_items=limits.max_items, within="prompt")


async def _find(project_id: int, prompt_id: str, version: str | None) -> PromptVersion:
    found = None
    if is_well_formed(prompt_id):
        found = await dbpool.run(PromptVersion.objects.served, project_id, prompt_id, version)
    if found is None:
        raise PromptNotFound(prompt_id[:128], None if version is None else version[:32])
    return found
