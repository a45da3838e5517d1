"""The socket's document is whole, and names every event."""

from typing import Any, get_args

import pytest

from responses_ws.protocol import client_events, server_events
from responses_ws.protocol.server_events import ServerEvent
from responses_ws.transports.schema.asyncapi import asyncapi


def pointed_at(document: Any, reference: str) -> Any:
    """What a reference within a document points at. Raises KeyError where that is nothing."""
    for key in reference.removeprefix("#/").split("/"):
        document = document[key]
    return document


def references_in(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for one in value for found in references_in(one)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if "$ref" in value else []
    return own + [found for one in value.values() for found in references_in(one)]


def test_every_reference_leads_somewhere() -> None:
    document = asyncapi()

    for reference in references_in(document):
        assert pointed_at(document, reference)


def test_the_root_is_what_the_specification_asks_for() -> None:
    document = asyncapi(host="api.example.com", base="/llm/v1", secure=True)

    assert document["asyncapi"] == "3.0.0"
    assert document["info"].keys() >= {"title", "version"}
    (server,) = document["servers"].values()
    assert (server["host"], server["pathname"], server["protocol"]) == ("api.example.com", "/llm/v1", "wss")
    (channel,) = document["channels"].values()
    assert channel["address"] == "/responses"
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        # An operation's messages are some of its channel's.
        names = [message["$ref"].removeprefix("#/channels/responses/messages/") for message in operation["messages"]]
        assert set(names) <= channel["messages"].keys()


def types_in(operation: str) -> set[str]:
    document = asyncapi()
    messages = document["operations"][operation]["messages"]
    return {pointed_at(document, pointed_at(document, one["$ref"])["$ref"])["name"] for one in messages}


def test_every_client_event_that_is_decoded_is_in_the_document() -> None:
    decoded = {event.__struct_config__.tag for event in get_args(client_events._Decoded)}

    assert types_in("receiveClientEvent") == decoded


def test_every_server_event_is_in_the_document() -> None:
    def leaves(event: type[ServerEvent]) -> set[str]:
        below = event.__subclasses__()
        return set().union(*map(leaves, below)) if below else {event.__struct_config__.tag}

    assert types_in("sendServerEvent") == leaves(ServerEvent) | {"error"}


@pytest.mark.parametrize("module", [client_events, server_events], ids=lambda module: module.__name__)
def test_a_message_s_payload_has_its_type(module: Any) -> None:
    document = asyncapi()

    for name, message in document["components"]["messages"].items():
        payload = pointed_at(document, message["payload"]["$ref"])
        assert payload["properties"]["type"] == {"const": name}
        assert "type" in payload["required"]
        assert message["summary"].endswith((".", ":"))
