"""Pages of a list, walked to the end in both directions."""

import pytest

from responses_ws.protocol.errors import InvalidRequest
from responses_ws.transports.pages import page_asked, page_of

ITEMS = [{"id": f"msg_{number}"} for number in range(7)]


def walked(items: list[dict[str, str]], query: dict[str, str]) -> list[str]:
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = page_of(items, page_asked({**query, **after}))
        seen += [item["id"] for item in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            return seen
        after = {"after": page["last_id"]}


@pytest.mark.parametrize("limit", ["1", "2", "7", "100"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_add_up_to_the_list(limit: str, order: str) -> None:
    ids = [item["id"] for item in ITEMS]

    assert walked(ITEMS, {"limit": limit, "order": order}) == (ids if order == "asc" else ids[::-1])


def test_the_newest_twenty_come_first_unless_told_otherwise() -> None:
    page = page_of([{"id": str(number)} for number in range(30)], page_asked({}))

    assert [item["id"] for item in page["data"]] == [str(number) for number in range(29, 9, -1)]
    assert page["object"] == "list" and page["has_more"]


def test_an_empty_page_has_no_first_and_no_last() -> None:
    page = page_of(ITEMS, page_asked({"after": "msg_0"}))

    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_paging_ends_where_ids_repeat() -> None:
    assert walked([{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "c"}], {"limit": "1", "order": "asc"}) == ["a", "c"]


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "²"}, {"limit": "9" * 5000}, {"order": ""}]
)
def test_a_bad_query_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        page_asked(query)


def test_an_unknown_after_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        page_of(ITEMS, page_asked({"after": "msg_x"}))
