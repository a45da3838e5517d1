"""Prompt templates in the office: drafts are written, published ones stay."""

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from responses_ws.models import PromptTemplate, PromptVersion

from .conftest import SCRIPT

pytestmark = pytest.mark.django_db


def page(model, pk=None):
    if pk is None:
        return reverse(f"admin:responses_ws_{model}_add")
    return reverse(f"admin:responses_ws_{model}_change", args=(quote(pk),))


def fields_of(version, **changes):
    fields = {"template": version.template_id, "text": version.text, "model": "", "defaults": "{}", "note": ""}
    return {**fields, **changes}


@pytest.fixture
def template(filled):
    return PromptTemplate.objects.get()


@pytest.fixture
def published(template):
    return template.versions.get(number=1)


@pytest.fixture
def draft(template):
    return template.versions.get(number=2)


def test_a_template_is_made_with_an_id_of_its_own(boss, filled):
    boss.post(page("prompttemplate"), {"project": filled.pk, "name": "farewell"})

    made = PromptTemplate.objects.get(name="farewell")
    assert made.pk.startswith("pmpt_") and len(made.pk) == 53
    assert made.pk in boss.get(page("prompttemplate", made.pk)).content.decode()


def test_versions_are_numbered_in_order(boss, template, draft):
    boss.post(page("promptversion"), fields_of(draft, text="A third one."))

    assert list(template.versions.values_list("number", "text"))[0] == (3, "A third one.")


def test_a_draft_is_changed_and_then_published_for_good(boss, template, draft):
    boss.post(page("promptversion", draft.pk), fields_of(draft, text="Say {{what}}."))
    boss.post(
        reverse("admin:responses_ws_promptversion_changelist"), {"action": "publish", "_selected_action": [draft.pk]}
    )
    boss.post(page("promptversion", draft.pk), fields_of(draft, text="changed after all"))

    draft.refresh_from_db()
    assert draft.is_published and draft.text == "Say {{what}}."
    assert template.default_version.number == 1


def test_publishing_needs_the_right_to_change(log_in, draft):
    client = log_in("view_promptversion")

    client.post(
        reverse("admin:responses_ws_promptversion_changelist"), {"action": "publish", "_selected_action": [draft.pk]}
    )

    draft.refresh_from_db()
    assert not draft.is_published


def test_what_was_published_is_not_deleted(boss, template, published, draft):
    def delete(model, row):
        path = reverse(f"admin:responses_ws_{model}_delete", args=(quote(row.pk),))
        return boss.post(path, {"post": "yes"}).status_code

    assert delete("promptversion", published) == 403
    assert delete("prompttemplate", template) == 403
    assert delete("promptversion", draft) == 302
    assert list(PromptVersion.objects.all()) == [published]


def test_only_published_versions_of_its_own_can_be_a_template_s_default(boss, template, published, draft):
    boss.post(page("prompttemplate", template.pk), {"name": "greeting", "default_version": draft.pk})
    refused = PromptTemplate.objects.get().default_version
    PromptVersion.objects.publish()
    boss.post(page("prompttemplate", template.pk), {"name": "greeting", "default_version": draft.pk})

    assert refused == published
    assert PromptTemplate.objects.get().default_version == draft


def test_the_difference_to_the_version_before_is_shown(boss, draft):
    draft.text = f"Greet {{{{name}}}} warmly.\n{SCRIPT}\n[user]\nHello"
    draft.save()

    shown = boss.get(page("promptversion", draft.pk)).content.decode()

    assert "-Greet {{name}}.\n+Greet {{name}} warmly." in shown
    assert SCRIPT not in shown
    assert "name" in shown


@pytest.mark.parametrize(
    ("defaults", "complaint"),
    [
        ('{"temperature": 3}', "temperature"),
        ('{"temprature": 1}', "no default for temprature"),
        ('{"input": "hi"}', "no default for input"),
        ('{"tools": [{"type": "function"}]}', "tools[0].name"),
        ("[]", "object"),
    ],
)
def test_defaults_that_no_request_may_have_are_refused(boss, draft, defaults, complaint):
    answer = boss.post(page("promptversion", draft.pk), fields_of(draft, defaults=defaults))

    assert answer.status_code == 200
    assert complaint in answer.content.decode()


def test_good_defaults_are_taken(boss, draft):
    boss.post(page("promptversion", draft.pk), fields_of(draft, defaults='{"temperature": 0.5}', model="m"))

    draft.refresh_from_db()
    assert (draft.defaults, draft.model) == ({"temperature": 0.5}, "m")
