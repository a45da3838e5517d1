"""The queue of flags: who may see, who may decide, and that the decision is kept; and rules that are checked."""

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from responses_ws.models import Flag, SafetyRule

from .conftest import SCRIPT, make_flag
from .test_pages import change_page, changelist

pytestmark = pytest.mark.django_db

RULE = {"name": "keys", "kind": "pattern", "pattern": "key-[0-9]{8}", "action": "flag", "scope": "both"}


def review(flag):
    return reverse("admin:responses_ws_flag_review", args=(flag.pk,))


def test_who_reviews_a_flag_and_when_is_kept(log_in, filled):
    flag = Flag.objects.get()
    client = log_in("view_flag", "review_flag")

    client.post(review(flag), {"state": "confirmed"})

    flag.refresh_from_db()
    assert flag.state == "confirmed"
    assert flag.reviewed_by == User.objects.get(pk=client.session["_auth_user_id"])
    assert flag.reviewed_at is not None


def test_many_are_dismissed_from_the_list_and_the_first_decision_stays(log_in, filled):
    confirmed = Flag.objects.get()
    Flag.objects.review("confirmed", None)
    others = [make_flag(filled, f"resp_{number}") for number in range(3)]
    client = log_in("view_flag", "review_flag")

    client.post(
        changelist("flag"), {"action": "dismiss", "_selected_action": [confirmed.pk, *(flag.pk for flag in others)]}
    )

    assert Flag.objects.get(pk=confirmed.pk).state == "confirmed"
    assert set(Flag.objects.exclude(pk=confirmed.pk).values_list("state", flat=True)) == {"dismissed"}


def test_who_may_only_see_cannot_decide(log_in, filled):
    flag = Flag.objects.get()
    client = log_in("view_flag")

    answer = client.post(review(flag), {"state": "dismissed"})
    client.post(changelist("flag"), {"action": "dismiss", "_selected_action": [flag.pk]})
    page = client.get(change_page("flag", flag.pk)).content.decode()

    assert answer.status_code == 403
    assert "Dismiss" not in page
    assert Flag.objects.get().state == "open"


@pytest.mark.parametrize("state", ["open", "gone", ""])
def test_a_flag_is_confirmed_or_dismissed_and_nothing_else(boss, filled, state):
    flag = Flag.objects.get()

    boss.post(review(flag), {"state": state})

    assert Flag.objects.get().state == "open"


def test_looking_does_not_decide(boss, filled):
    assert boss.get(review(Flag.objects.get())).status_code == 405


def test_an_excerpt_is_for_those_who_may_see_content_and_is_escaped(log_in, filled):
    flag = Flag.objects.get()

    without = log_in("view_flag").get(change_page("flag", flag.pk)).content.decode()
    seen = log_in("view_flag", "view_content").get(change_page("flag", flag.pk)).content.decode()

    assert "alert(" not in without
    assert SCRIPT not in seen and "&lt;script&gt;alert(" in seen


def test_the_buttons_are_there_until_a_flag_is_decided(boss, filled):
    flag = Flag.objects.get()

    before = boss.get(change_page("flag", flag.pk)).content.decode()
    boss.post(review(flag), {"state": "dismissed"})
    after = boss.get(change_page("flag", flag.pk)).content.decode()

    assert "Confirm</button>" in before and "Dismiss</button>" in before
    assert "Confirm</button>" not in after


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param({"pattern": "("}, "RE2 does not take this pattern", id="no pattern"),
        pytest.param({"pattern": r"(a)\1"}, "RE2 does not take this pattern", id="back-reference"),
        pytest.param({"pattern": "a*"}, "matches everywhere", id="empty match"),
        pytest.param({"pattern": ""}, "required", id="missing"),
        pytest.param({"kind": "words", "pattern": " \n"}, "required", id="no words"),
        pytest.param({"kind": "secrets", "pattern": "x"}, "leave this empty", id="secrets with a pattern"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_not_saved(boss, db, changes, complaint):
    page = boss.post(reverse("admin:responses_ws_safetyrule_add"), {**RULE, **changes}).content.decode()

    assert complaint in page
    assert not SafetyRule.objects.exists()


@pytest.mark.parametrize(
    "changes", [{}, {"kind": "words", "pattern": "one\ntwo words"}, {"kind": "secrets", "pattern": ""}]
)
def test_a_rule_is_saved_and_switched_off(boss, db, changes):
    boss.post(reverse("admin:responses_ws_safetyrule_add"), {**RULE, **changes, "is_enabled": "on"})
    rule = SafetyRule.objects.get()
    assert rule.is_enabled

    boss.post(changelist("safetyrule"), {"action": "disable", "_selected_action": [rule.pk]})

    rule.refresh_from_db()
    assert not rule.is_enabled
