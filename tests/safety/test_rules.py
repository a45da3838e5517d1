"""Rules from the admin, as the classifier looks for them."""

import asyncio
import time

import pytest

from responses_ws.models import Project, SafetyRule
from responses_ws.runtime import dbpool
from responses_ws.safety import rules as module
from responses_ws.safety.base import Material, Passage, Side, Verdict
from responses_ws.safety.passages import redacted
from responses_ws.safety.rules import Rules
from responses_ws.safety.ruleset import Rule, Ruleset
from responses_ws.safety.secrets import SECRETS
from responses_ws.testing import ClassifierContract

KEY = "AKIA" + "IOSFODNN7EXAMPLE"
# Made up, and put together here so that nothing that looks for leaked keys finds them in this file.
EXAMPLES = {
    "private_key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "aws_access_key": KEY,
    "sk_key": "sk-proj-" + "a1B2" * 8,
    "github_token": "ghp_" + "a1B2" * 9,
    "gitlab_token": "glpat-" + "a1B2" * 5,
    "slack_token": "xoxb-" + "1234567890-abc",
    "google_api_key": "AIza" + "a1B2_" * 7,
    "stripe_key": "sk_live_" + "a1B2" * 5,
    "npm_token": "npm_" + "a1B2" * 9,
    "pypi_token": "pypi-" + "a1B2" * 6,
    "huggingface_token": "hf_" + "a1B2" * 9,
    "json_web_token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0" + ".c2lnbmF0dXJl",
    "password_in_url": "postgres://app:" + "hunter2@",
}
INNOCENT = """The task-something-long-enough-to-look-odd is a risk-adjusted-return-on-capital question.
See https://example.org/path:80 and mail me@example.org; commit 3f786850e387550fdab836ed7e6dc881de23001b."""


def look(ruleset: Ruleset, text: str) -> list[tuple[str, str]]:
    return [(match.category, text[match.start : match.end]) for match in ruleset.matches(text)]


def rule(pattern: str = "", kind: str = "pattern", action: str = "flag") -> Rule:
    return Rule("mine", kind, pattern, action, "both", None)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_found_by_its_form_and_whole(kind: str) -> None:
    found = look(Ruleset([rule(kind="secrets")]), f"here: {EXAMPLES[kind]} (keep it)")

    assert found == [(kind, EXAMPLES[kind])]


def test_innocent_text_is_no_secret() -> None:
    assert look(Ruleset([rule(kind="secrets")]), INNOCENT) == []


def test_a_block_list_finds_whole_words_whatever_their_case() -> None:
    ruleset = Ruleset([rule("bomb\nmolotov cocktail\nC++\nбомба", kind="words")])

    found = look(ruleset, "A BOMB, a bombast, Molotov\n  cocktail; c++ and бомбА")

    assert [text for _category, text in found] == ["BOMB", "Molotov\n  cocktail", "c++", "бомбА"]


def test_a_block_list_of_thousands_still_finds_its_last_word() -> None:
    ruleset = Ruleset([rule("\n".join(f"word{number} or phrase{number}" for number in range(3000)), kind="words")])

    assert look(ruleset, "say word2999 OR phrase2999 now") == [("mine", "word2999 OR phrase2999")]


def test_positions_are_characters_whatever_their_bytes() -> None:
    assert look(Ruleset([rule("key-[0-9]+")]), "äöü 😀 key-123 ß") == [("mine", "key-123")]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){12}", "((a{0,30}){0,30}){0,1}b"])
def test_no_pattern_is_slow_on_a_malicious_text(pattern: str) -> None:
    """What takes a backtracking engine longer than the universe has been there ends here, and within the test."""
    try:
        ruleset = Ruleset([rule(pattern + "|x{3}")])
    except ValueError:
        return

    assert isinstance(look(ruleset, "a" * 5_000 + "!"), list)


class TestRules(ClassifierContract):
    bad = f"take {KEY} with you"
    sides: tuple[Side, ...] = ("input", "output")

    @pytest.fixture(autouse=True)
    def _rules(self, transactional_db: None) -> None:
        SafetyRule.objects.create(name="secrets", kind="secrets", action="redact")

    def classifier(self) -> Rules:
        return Rules("rules", {})


async def check(rules: Rules, *texts: str, before: str = "", side: Side = "input", project_id: int = 1) -> Verdict:
    return await rules.check(Material(side, [Passage(text, "user") for text in texts], before, project_id, "m"))


async def categories(rules: Rules, text: str, **about: object) -> list[str]:
    return [finding.category for finding in (await check(rules, text, **about)).findings]


async def test_a_rule_is_in_force_at_once_in_the_process_that_changed_it(transactional_db: None) -> None:
    rules = Rules("rules", {})
    assert await categories(rules, "bomb") == []

    row = await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb", action="redact")
    after = await categories(rules, "bomb")
    await row.adelete()

    assert after == ["bombs"]
    assert await categories(rules, "bomb") == []


async def test_a_change_from_elsewhere_is_in_force_when_the_rules_are_no_longer_fresh(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules("rules", {})
    await categories(rules, "bomb")
    # As another process writes it: nobody here is told.
    await SafetyRule.objects.abulk_create([SafetyRule(name="bombs", kind="words", pattern="bomb")])
    before = [await categories(rules, "bomb") for _ in range(20)]

    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module.SECONDS_FRESH + 0.1)

    assert before == [[]] * 20
    assert await categories(rules, "bomb") == ["bombs"]


async def test_what_it_does_for_a_project_depends_on_the_rules_for_that(project: Project) -> None:
    rules = Rules("rules", {})

    def can(project_id: int = 0) -> tuple[bool, bool]:
        found = rules.capabilities_for(project_id)
        return found.redacts, found.reads_output

    unknown = can()
    await SafetyRule.objects.acreate(name="a", kind="words", pattern="a", action="flag", scope="input")
    await check(rules, "x")
    flags_only = can()
    await SafetyRule.objects.acreate(name="b", kind="words", pattern="b", action="redact", scope="output")
    await SafetyRule.objects.acreate(name="c", kind="words", pattern="c", action="redact", project=project)
    await check(rules, "x")

    assert unknown == (True, True)
    assert flags_only == (False, False)
    assert can() == (False, True)
    assert can(project.pk) == (True, True)


async def test_a_rule_of_one_project_is_for_that_only(project: Project) -> None:
    rules = Rules("rules", {})
    await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb", project=project)

    assert await categories(rules, "bomb", project_id=project.pk) == ["bombs"]
    assert await categories(rules, "bomb", project_id=project.pk + 1) == []


async def test_a_rule_that_does_not_compile_is_left_out_and_the_others_are_in_force(transactional_db: None) -> None:
    await SafetyRule.objects.acreate(name="broken", kind="pattern", pattern="(")
    await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb")

    assert await categories(Rules("rules", {}), "bomb") == ["bombs"]


@pytest.mark.parametrize("cut", range(1, len(KEY)))
async def test_wherever_a_secret_is_cut_its_second_half_is_redacted(transactional_db: None, cut: int) -> None:
    await SafetyRule.objects.acreate(name="secrets", kind="secrets", action="redact")
    text = KEY[cut:] + " is my key"

    verdict = await check(Rules("rules", {}), text, before="so: " + KEY[:cut])

    (finding,) = verdict.findings
    assert redacted(text, [(span.start, span.end) for span in finding.spans]) == "[redacted] is my key"


async def test_a_long_secret_that_began_before_is_redacted_to_its_end(transactional_db: None) -> None:
    await SafetyRule.objects.acreate(name="secrets", kind="secrets", action="redact")
    text = "a1B2" * 200 + " end"

    (finding,) = (await check(Rules("rules", {}), text, before="sk-proj-")).findings

    assert [(span.start, span.end) for span in finding.spans] == [(0, 800)]


async def test_a_redaction_that_goes_out_of_sight_in_an_answer_is_a_cut(transactional_db: None) -> None:
    await SafetyRule.objects.acreate(name="secrets", kind="secrets", action="redact")
    begun = EXAMPLES["private_key"].partition("MII")[0] + "A" * 200

    (in_answer,) = (await check(Rules("rules", {}), begun, side="output")).findings
    (in_input,) = (await check(Rules("rules", {}), begun)).findings

    assert (in_answer.action, in_input.action) == ("refuse", "redact")


async def test_many_look_while_the_rules_are_read_once(transactional_db: None) -> None:
    await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb")
    rules = Rules("rules", {})

    found = await asyncio.gather(*(categories(rules, "bomb") for _ in range(20)))

    assert found == [["bombs"]] * 20


async def test_a_text_of_a_megabyte_is_looked_at_whole(transactional_db: None) -> None:
    await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb")

    assert await categories(Rules("rules", {}), "fine " * 200_000 + "bomb") == ["bombs"]


async def test_with_the_database_away_the_known_rules_stay_in_force(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await SafetyRule.objects.acreate(name="bombs", kind="words", pattern="bomb")
    rules = Rules("rules", {})
    await categories(rules, "bomb")

    async def away(*_args: object) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(dbpool, "run", away)
    module._count_change()

    assert await categories(rules, "bomb") == ["bombs"]
    with pytest.raises(ConnectionError):
        await categories(Rules("rules", {}), "bomb")


@pytest.mark.parametrize("options", [{"HOLD_BACK": 3}, {"HOLDS_BACK": "many"}])
def test_a_wrong_option_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Rules("rules", options)
