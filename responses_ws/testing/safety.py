"""The contract of classifiers."""

import asyncio
import contextlib
import unittest
from collections.abc import Sequence

from responses_ws.safety.base import Classifier, Material, Passage, Side, Verdict


class ClassifierContract:
    """What every classifier promises. Subclass it in your tests, as ``class TestMyClassifier(ClassifierContract)``.

    Give ``classifier()``, a text that is ``bad`` and one that is ``clean``; and ``down()`` if it asks somebody else.
    """

    bad: str
    clean: str = "The weather is fine today."
    sides: Sequence[Side] = ("input",)
    project_id = 1
    seconds_to_answer = 10.0

    def classifier(self) -> Classifier:
        """A fresh one."""
        raise NotImplementedError

    def down(self) -> Classifier | None:
        """One that cannot do its work, as when a machine it asks is away."""
        return None

    async def test_it_finds_what_is_bad_and_says_where(self) -> None:
        for side in self.sides:
            verdict = await self._look(self.classifier(), self.clean, self.bad, side=side)

            assert verdict.findings, f"nothing found in {side}"
            for finding in verdict.findings:
                assert 0 < len(finding.category) <= 100
                for span in finding.spans:
                    assert 0 <= span.start < span.end <= len([self.clean, self.bad][span.passage])

    async def test_it_finds_nothing_in_what_is_clean(self) -> None:
        for side in self.sides:
            verdict = await self._look(self.classifier(), self.clean, side=side)

            assert list(verdict.findings) == []

    async def test_it_remembers_nothing(self) -> None:
        classifier = self.classifier()
        first = await self._look(classifier, self.bad)
        after = await self._look(classifier, self.clean)

        again = await self._look(classifier, self.bad)

        assert list(after.findings) == []
        assert list(again.findings) == list(first.findings)

    async def test_looks_side_by_side_do_not_mix(self) -> None:
        classifier = self.classifier()

        verdicts = await asyncio.gather(*(self._look(classifier, text) for text in [self.bad, self.clean] * 4))

        assert [bool(verdict.findings) for verdict in verdicts] == [True, False] * 4

    async def test_what_is_bad_is_found_in_two_pieces_where_it_carries_so_much(self) -> None:
        classifier = self.classifier()
        middle = len(self.bad) // 2
        first, second = self.bad[:middle], self.bad[middle:]
        if classifier.carries < len(self.bad):
            raise unittest.SkipTest("this classifier carries less")

        in_two_passages = await self._look(classifier, first, second)
        in_two_turns = await self._look(classifier, second, before=first)

        assert in_two_passages.findings
        assert in_two_turns.findings

    async def test_it_redacts_input_only_if_it_says_so_and_says_what(self) -> None:
        classifier = self.classifier()

        verdict = await self._look(classifier, self.bad)

        redacting = [finding for finding in verdict.findings if finding.action == "redact"]
        assert classifier.capabilities_for(self.project_id).redacts or not redacting
        assert all(finding.spans for finding in redacting)

    async def test_it_has_a_score_where_clients_may_ask_for_it(self) -> None:
        classifier = self.classifier()

        verdict = await self._look(classifier, self.bad)

        assert (verdict.score is not None) == (classifier.moderation_model is not None)

    async def test_one_that_is_down_says_nothing_rather_than_that_there_is_nothing(self) -> None:
        classifier = self.down()
        if classifier is None:
            raise unittest.SkipTest("this classifier asks nobody")
        verdict = None

        with contextlib.suppress(Exception):
            verdict = await self._look(classifier, self.clean)

        assert verdict is None

    async def test_closing_twice_is_closing_once(self) -> None:
        classifier = self.classifier()
        await self._look(classifier, self.clean)

        await classifier.aclose()
        await classifier.aclose()

    async def _look(self, classifier: Classifier, *texts: str, before: str = "", side: Side = "input") -> Verdict:
        passages = [Passage(text, "user") for text in texts]
        async with asyncio.timeout(self.seconds_to_answer):
            return await classifier.check(Material(side, passages, before, self.project_id, "any"))
