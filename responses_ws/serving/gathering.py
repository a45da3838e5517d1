"""The context of a turn: the parent found, the new input checked, the prompt extended."""

import asyncio
from collections.abc import Sequence

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.chain import CONTINUABLE, Link
from responses_ws.connection.log import SharedLog
from responses_ws.engines.registry import Route, registry
from responses_ws.protocol.compaction import (
    COMPACTION,
    in_place,
)
from responses_ws.protocol.configuration import Configuration
from responses_ws.protocol.depth import check_depth
from responses_ws.protocol.errors import PreviousResponseNotFound
from responses_ws.protocol.items import Item, calls_left_open, check_media_sizes, input_items, listed, require_outputs
from responses_ws.protocol.request import (
    Request,
    check_chosen_tool,
    check_format,
    check_request,
    check_tools,
    keep_nothing,
)
from responses_ws.rendering.chat import MEDIA, ChatPrompt, Medium
from responses_ws.rendering.tools import ToolSet
from responses_ws.runtime import metrics
from responses_ws.runtime.ids import new_id
from responses_ws.stores.base import StoredChain
from responses_ws.stores.lookup import find_stored
from responses_ws.stores.memory import hot_tier
from responses_ws.tools.registry import tools as hosted_tools

from .admission import admit
from .arrival import may_have_come
from .context import Asked, Context, Gathered, run_upstream, tool_set
from .conversations import find_conversation, hold, link_of
from .prompts import expanded
from .references import resolved
from .safety import no_screening, open_screening
from .sealed import opened_context, opened_input


async def open_context(asked: Asked) -> Context:
    """Everything before the engine call. Costs what is new.

    Raises:
        ApiError: the request cannot be served; nothing has happened but that its conversation may be held.
    """
    return Context(**msgspec.structs.asdict(await gather(asked))).fitted()


async def gather(asked: Asked, *, is_counted: bool = False) -> Gathered:
    """The context of a turn, or of a request whose input ``is_counted`` and no more: that holds no conversation.

    ``asked.request`` is then as it is meant: with what its prompt template and earlier items supply.

    Raises:
        ApiError: the request cannot be served.
    """
    limits = app_settings.limits
    front: list[Item] = []
    queued = asked.queued
    if asked.request.prompt is not None and queued is None:
        asked.request, front = await expanded(asked.principal, asked.request)
    request = asked.request
    if queued is None:
        if asked.principal.zero_retention:
            keep_nothing(request)
        check_request(
            request,
            max_tools=None,
            max_schema_bytes=limits.max_schema_bytes,
            is_on_socket=asked.transport == "websocket",
            is_counted=is_counted,
        )
    if request.model is not None:
        # What the client is told, what is recorded and what it costs goes by this name, as with dated snapshots.
        request.model = registry.real_name(request.model)
        admit(asked.principal, request.model)
    parent = await _find_parent(asked, is_counted=is_counted)
    route = await _route(asked, parent)
    if queued is None:
        given = input_items(request.input, new_id, max_items=limits.max_items)
        check_media_sizes(given, max_image_bytes=limits.max_image_bytes, max_file_bytes=limits.max_file_bytes)
        new_items = await resolved(given, project_id=asked.principal.project_id, links=_links_of(asked, parent))
        shown = _opened(given, new_items, asked)
    else:
        new_items = queued.items
        shown = opened_input(new_items, project_id=asked.principal.project_id, model=request.model, may_be_old=True)
    if parent is not None and parent.kept_input:
        new_items = _behind_outputs(new_items, parent.kept_input)
        shown = _behind_outputs(shown, parent.kept_input)
    require_outputs(calls_left_open(parent.open_calls if parent else {}, new_items))
    screening = no_screening(asked.principal) if is_counted else open_screening(asked.principal, request, parent)
    if queued is not None and queued.refusal is not None:
        screening.refuse_again(queued.refusal)
        admitted, instructions = shown, queued.instructions
    else:
        before = queued.instructions if queued is not None else _in_front(request.instructions, front)
        admitted, instructions = await screening.admit(shown, before)
    # What is sealed stays so where it is kept.
    new_items = [new if was is old else old for was, new, old in zip(shown, admitted, new_items, strict=True)]
    shown = admitted
    items = (parent.items if parent else SharedLog[Item]()).extended(new_items)
    if any(item.get("type") == COMPACTION for item in shown):
        # Whatever the parent's prompt says, most of it counts no more.
        past = opened_context(list(parent.items), project_id=asked.principal.project_id) if parent else []
        past_prompt, shown = ChatPrompt(takes=_media(route)), in_place([*past, *shown])
    else:
        past_prompt = _past_prompt(parent, _media(route), asked)
    past_configuration = parent.configuration if parent else Configuration()
    # As it is shown: a compaction holds settings, too.
    configuration = past_configuration.after(shown)
    if configuration.text_format is not None and configuration.text_format is not past_configuration.text_format:
        check_format(configuration.text_format, "text.format", max_schema_bytes=limits.max_schema_bytes)
    asked.request = request = configuration.applied(request)
    return Gathered(
        asked=asked,
        route=route,
        parent=parent,
        new_items=new_items,
        items=items,
        input_end=len(items),
        prompt=past_prompt.extended(shown),
        instructions=instructions,
        tools=_tools(request, configuration, parent, route),
        configuration=configuration,
        screening=screening,
    )


async def _route(asked: Asked, parent: Link | None) -> Route | None:
    """Who answers for the model, resolved once per chain. Raises ModelNotFound."""
    model = asked.request.model
    if parent is not None and parent.route is not None and parent.route.model == model and not parent.route.is_stale:
        known: Route = parent.route
        return known
    return None if model is None else await registry.resolve(model, key=_beginning(asked))


def _beginning(asked: Asked) -> str | None:
    """Names requests that begin alike, where the client does so."""
    name = asked.request.prompt_cache_key or asked.request.conversation_id
    return None if name is None else f"{asked.principal.project_id}:{name}"


def _media(route: Route | None) -> frozenset[Medium]:
    return MEDIA if route is None else route.capabilities.media


def _past_prompt(parent: Link | None, takes: frozenset[Medium], asked: Asked) -> ChatPrompt:
    """What the new input is appended to: the parent's prompt, unless that was made for an engine of other means, or
    without the oldest turns, which this request does not allow."""
    if parent is None:
        return ChatPrompt(takes=takes)
    prompt: ChatPrompt = parent.prompt
    if prompt.takes == takes and (prompt.is_whole or asked.request.truncation == "auto"):
        return prompt
    past = opened_context(list(parent.items), project_id=asked.principal.project_id)
    return ChatPrompt(takes=takes).extended(in_place(past))


def _opened(given: Sequence[Item], resolved_items: Sequence[Item], asked: Asked) -> list[Item]:
    """The new items as the model is to see them: what the client sends is checked, what it refers to is our own."""
    project_id = asked.principal.project_id
    shown = opened_input(given, project_id=project_id, model=asked.request.model)
    for index, item in enumerate(given):
        if item.get("type") == "item_reference":
            shown[index : index + 1] = opened_context([resolved_items[index]], project_id=project_id)
    return shown


def _in_front(instructions: str | None, messages: list[Item]) -> str | list[Item] | None:
    """Instructions alone as they are; with messages of a prompt template, as the first of them."""
    if not messages:
        return instructions
    first = input_items([{"role": "developer", "content": instructions}], new_id, max_items=1) if instructions else []
    return [listed(item) for item in first + messages]


def _tools(request: Request, configuration: Configuration, parent: Link | None, route: Route | None) -> ToolSet:
    """The tools of this turn; the parent's set, if they are the same."""
    sent = [*(request.tools or ()), *configuration.tools]
    is_alike = (
        parent is not None
        and parent.configuration.listings is configuration.listings
        and run_upstream(parent.route) == run_upstream(route)
    )
    if parent is not None and is_alike and parent.tools is not None and parent.tools.source == sent:
        tools: ToolSet = parent.tools
        if request.tools:
            # The same objects from here on: every link of a chain would otherwise hold a copy of its own.
            request.tools = list(tools.source[: len(request.tools)])
        names = tools.names
    else:
        names = check_tools(sent, max_tools=app_settings.limits.max_tools)
        check_depth(sent, "tools", within=2)
        hosted_tools.check(sent, theirs=run_upstream(route))
        tools = tool_set(sent, configuration, route)
    check_chosen_tool(request.tool_choice, names)
    return tools


def _links_of(asked: Asked, parent: Link | None) -> list[Link]:
    """What this connection knows, the parent first."""
    known = asked.chains.links() if asked.chains is not None else []
    return known if parent is None else [parent, *known]


def _behind_outputs(new_items: list[Item], kept: list[Item]) -> list[Item]:
    """Put kept steers in front of the new input, but behind the outputs it begins with: those follow their calls."""
    outputs = 0
    while outputs < len(new_items) and str(new_items[outputs].get("type")).endswith(("_output", "_approval_response")):
        outputs += 1
    return [*new_items[:outputs], *kept, *new_items[outputs:]]


async def _find_parent(asked: Asked, *, is_counted: bool) -> Link | None:
    """What to continue: a conversation; or a response, from this connection, this process, Redis or the database.

    Raises:
        PreviousResponseNotFound: unknown, foreign, deleted, expired and evicted look the same.
        ConversationNotFound: likewise.
        ConversationLocked: another turn is writing it.
    """
    conversation_id = asked.request.conversation_id
    if conversation_id is not None:
        takes = _media(await _route(asked, None))
        if is_counted:
            return await link_of(await find_conversation(asked.principal.project_id, conversation_id), takes)
        if asked.hold is None:
            asked.hold = await hold(asked.principal.project_id, conversation_id)
        return await link_of(asked.hold.conversation, takes)
    response_id = asked.previous_response_id
    if response_id is None:
        return None
    project_id = asked.principal.project_id
    if asked.chains is not None:
        link = asked.chains.find(response_id)
        if link is not None:
            metrics.lookups.add(("connection",))
            return link
    link = hot_tier.get(project_id, response_id)
    if link is not None:
        metrics.lookups.add(("process",))
        return link
    if asked.fallback is not None:
        unstored = await asked.fallback.load(project_id, response_id)
        if unstored is not None:
            metrics.lookups.add(("sealed",))
            link = await _link_from(unstored, asked)
            # Of this connection alone, and nowhere in the database.
            return msgspec.structs.replace(link, place=None, fallback=link.place)
    stored = await find_stored(project_id, response_id)
    if stored is None and await may_have_come(project_id, response_id):
        stored = await find_stored(project_id, response_id)
    if stored is None or stored.response["status"] not in CONTINUABLE:
        raise PreviousResponseNotFound(response_id)
    link = await _link_from(stored, asked)
    hot_tier.put(link)
    return link


async def _link_from(stored: StoredChain, asked: Asked) -> Link:
    """A link made anew from what was stored: its whole context is rendered, where its token ids were not kept."""
    project_id = asked.principal.project_id
    output = stored.items[stored.input_end :]
    # Other processes make links of this chain, too: for the same replica.
    route = await registry.resolve(stored.response["model"], key=_beginning(asked) or str(stored.place.root))
    shown = in_place(opened_context(stored.items, project_id=project_id))
    prompt = ChatPrompt(takes=route.capabilities.media).extended(shown)
    ids = None
    if stored.ids is not None and route.renderer is not None:
        ids = await asyncio.to_thread(stored.ids.log, prompt.log)
    prompt = prompt.with_tokens(ids)
    return Link(
        response_id=stored.response["id"],
        project_id=project_id,
        response=stored.response,
        items=SharedLog(stored.items),
        input_end=stored.input_end,
        open_calls=calls_left_open({}, output),
        configuration=Configuration().after(stored.items),
        prompt=prompt,
        route=route,
        size=prompt.memory_bytes,
        place=stored.place,
        copied=ids if stored.ids is not None and stored.ids.end == stored.place.end else None,
    )
