"""Who may open which page of the office and do what there: every URL and every action, found by walking the admin.

A page without an entry fails. What opens a page is held from both sides: each of its permissions alone is enough, and
all permissions of the app but these are not.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from responses_ws.management.groups import GROUPS
from responses_ws.models import Flag, Invoice, UsageRecord

from .conftest import SCRIPT
from .test_pages import LISTED, READ_ONLY

pytestmark = pytest.mark.django_db

NEVER_DELETED = {"adminkey", "apikey", "creditgrant", "price", "prompttemplate"}
"""Their rows, as ``filled`` makes them: keys, credit, prices that were used, prompts that were published."""

PAGES = {
    "responses_ws_dashboard_changelist": {"view_usagerecord"},
    "responses_ws_playground_changelist": {"use_playground"},
    "responses_ws_playground_price": {"use_playground"},
    "responses_ws_invoice_document": {"view_invoice"},
    "responses_ws_dashboard_response": {"view_usagerecord"},
    "responses_ws_live_changelist": {"view_usagerecord"},
    "responses_ws_usagerecord_export": {"view_usagerecord"},
}
"""Pages of our own, by the name of their URL: each of these permissions opens them."""

ORDERS = {
    "responses_ws_flag_review": {"view_flag", "review_flag"},
    "responses_ws_playground_key": {"use_playground"},
    "responses_ws_playground_revoke": {"use_playground"},
    "responses_ws_invoice_order": {"view_invoice", "settle_invoice"},
    "responses_ws_live_close": {"close_socket"},
    "responses_ws_live_cancel": {"close_socket"},
    "responses_ws_live_revoke": {"revoke_apikey"},
}
"""What is posted to URLs of our own: it takes all of these permissions."""

ACTIONS = {
    "adminkey": {"revoke": "revoke_apikey"},
    "apikey": {"revoke": "revoke_apikey"},
    "delivery": {"send_again": "replay_billing"},
    "invoice": dict.fromkeys(("finalize_selected", "pay_selected", "preview_selected"), "settle_invoice"),
    "flag": {"confirm": "review_flag", "dismiss": "review_flag"},
    "promptversion": {"publish": "change_promptversion"},
    "safetyrule": {"disable": "change_safetyrule", "enable": "change_safetyrule"},
    "price": {"withdraw": "change_price"},
    "usagerecord": dict.fromkeys(("bill_again", "compare_rating", "rate_again"), "replay_billing"),
}
"""What the actions of a list ask for, beside ``delete_selected`` of those whose rows can be deleted."""


def our_pages() -> dict[str, admin.ModelAdmin]:
    return {
        model._meta.model_name: page
        for model, page in admin.site._registry.items()
        if model._meta.app_label == "responses_ws"
    }


def url_names() -> Iterator[str]:
    for page in our_pages().values():
        # Without a name is the old place of a row's page, which redirects.
        yield from (pattern.name for pattern in page.get_urls() if pattern.name)


def openers(name: str) -> set[str]:
    """The permissions of which each opens the page; none: it is closed even to superusers."""
    if name in PAGES:
        return PAGES[name]
    model, kind = name.removeprefix("responses_ws_").rsplit("_", 1)
    assert model in LISTED, f"say in PAGES or ORDERS who may open {name}"
    if kind in ("changelist", "change", "history"):
        return {f"view_{model}"} if model in READ_ONLY else {f"view_{model}", f"change_{model}"}
    assert kind in ("add", "delete"), f"say in PAGES or ORDERS who may open {name}"
    is_closed = model in READ_ONLY or (kind == "delete" and model in NEVER_DELETED)
    return set() if is_closed else {f"{kind}_{model}"}


def path_of(name: str) -> str:
    if name == "responses_ws_flag_review":
        return reverse(f"admin:{name}", args=(Flag.objects.get().pk,))
    if name == "responses_ws_invoice_order":
        return reverse(f"admin:{name}", args=(Invoice.objects.first().pk,))
    if name == "responses_ws_invoice_document":
        return reverse(f"admin:{name}", args=(Invoice.objects.first().pk, "html"))
    if name == "responses_ws_dashboard_response":
        return reverse(f"admin:{name}", args=(UsageRecord.objects.first().response_id,))
    model, kind = name.removeprefix("responses_ws_").rsplit("_", 1)
    if kind in ("changelist", "add", "export") or model in ("live", "playground"):
        return reverse(f"admin:{name}")
    row = our_pages()[model].model.objects.first()
    assert row is not None, f"let conftest.filled make a row of {model}"
    return reverse(f"admin:{name}", args=(quote(row.pk),))


@cache
def _codenames() -> frozenset[str]:
    return frozenset(
        Permission.objects.filter(content_type__app_label="responses_ws").values_list("codename", flat=True)
    )


@pytest.fixture
def staff(db):
    """A client of one member of staff, who has just the permissions asked for last."""
    user = User.objects.create(username="staff", is_staff=True)
    client = Client()
    client.force_login(user)
    by_codename = {
        permission.codename: permission
        for permission in Permission.objects.filter(content_type__app_label="responses_ws")
    }

    def staff(codenames: set[str] | frozenset[str]) -> Client:
        user.user_permissions.set([by_codename[codename] for codename in codenames])
        return client

    return staff


def refused(answer: HttpResponse) -> bool:
    return answer.status_code == 403


def test_every_page_is_opened_by_its_permissions_and_by_no_other(filled, staff, boss):
    for name in url_names():
        if name in ORDERS:
            continue
        path, opening = path_of(name), openers(name)

        assert Client().get(path).status_code == 302, name
        assert refused(staff(set()).get(path)), name
        assert refused(staff(_codenames() - opening).get(path)), name
        for codename in opening:
            assert staff({codename}).get(path).status_code == 200, (name, codename)
        assert boss.get(path).status_code == (200 if opening else 403), name


def test_every_order_takes_all_of_its_permissions(filled, staff, boss):
    for name, needed in ORDERS.items():
        path = path_of(name)

        assert "/login/" in Client().post(path).url, name
        for codename in needed:
            assert refused(staff(_codenames() - {codename}).post(path)), (name, codename)
        assert not refused(staff(needed).post(path)), name
        assert staff(needed).get(path).status_code == 405, name


def test_every_action_is_offered_to_who_may_and_to_nobody_else(filled):
    names = _codenames()
    request = RequestFactory().get("/")

    def offered(page: admin.ModelAdmin, codenames: frozenset[str]) -> set[str]:
        request.user = User(is_staff=True)
        request.user._perm_cache = {f"responses_ws.{codename}" for codename in codenames}
        return set(page.get_actions(request))

    for model, page in our_pages().items():
        wanted = dict(ACTIONS.get(model, {}))
        if model in LISTED and model not in READ_ONLY and "delete_selected" in offered(page, names):
            wanted["delete_selected"] = f"delete_{model}"

        assert offered(page, names) == set(wanted), f"say in ACTIONS who may do what with {model}"
        for action, codename in wanted.items():
            assert action in offered(page, frozenset({codename, f"view_{model}"})), (model, action)
            assert action not in offered(page, names - {codename}), (model, action)


def test_what_was_said_is_on_no_page_without_its_own_permission(filled, staff):
    said = ("what was asked", "msg_kept", "alert(&#x27;x", "alert('x", SCRIPT)
    shown = {}

    for codenames in (_codenames() - {"view_content"}, _codenames()):
        client = staff(codenames)
        pages = {name: b"".join(client.get(path_of(name))).decode() for name in url_names() if name not in ORDERS}
        shown[codenames] = {name for name, page in pages.items() if any(words in page for words in said)}

    without, with_it = shown.values()
    assert without == set()
    assert with_it == {
        f"responses_ws_{model}_{kind}"
        for model, kind in (("storedresponse", "change"), ("conversation", "change"), ("flag", "change"))
    }


def test_groups_are_made_once_and_keep_what_was_added_by_hand(db):
    call_command("responses_ws_groups", verbosity=0)
    viewer = Group.objects.get(name="responses_ws viewer")
    by_hand = Permission.objects.get(codename="use_playground")
    viewer.permissions.add(by_hand)

    call_command("responses_ws_groups", verbosity=0)

    assert set(Group.objects.values_list("name", flat=True)) == {f"responses_ws {name}" for name in GROUPS}
    assert by_hand in viewer.permissions.all()


def test_groups_may_what_their_names_say(db):
    call_command("responses_ws_groups", verbosity=0)
    may = {
        name: set(Group.objects.get(name=f"responses_ws {name}").permissions.values_list("codename", flat=True))
        for name in GROUPS
    }

    assert may["owner"] == _codenames()
    assert all(codename.startswith("view_") for codename in may["viewer"])
    assert may["viewer"] < may["operator"] and may["viewer"] < may["accountant"]
    for name in ("viewer", "operator", "accountant"):
        assert "view_content" not in may[name]
    assert {"revoke_apikey", "close_socket", "use_playground"} <= may["operator"] - may["accountant"]
    assert {"add_price", "settle_invoice"} <= may["accountant"] - may["operator"]
