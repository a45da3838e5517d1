"""The classifiers beside one response: what is new is looked at once, and no output leaves before that."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.chain import Link
from responses_ws.engines.base import EngineError
from responses_ws.protocol.errors import ApiError, InvalidRequest, Overloaded
from responses_ws.protocol.items import Item
from responses_ws.protocol.moderation import ModerationConfig, moderation_error, moderation_result
from responses_ws.protocol.request import JsonObject, Request
from responses_ws.protocol.sampling import Delta
from responses_ws.safety.base import Capabilities, Finding, Material, Passage, Score, Side, Verdict
from responses_ws.safety.passages import REMOVED, blanked, passages_of, redacted, rewritten
from responses_ws.safety.registry import Seat, classifiers
from responses_ws.safety.stream import OutputFilter

from .admission import Principal
from .carried import Carried, derived, is_carried, tail
from .flags import Raised, excerpt_of, raise_flags
from .mailbox import Mailbox
from .sampling import Sign, Word

logger = logging.getLogger(__name__)

_STRICTNESS = ("flag", "redact", "refuse")


class Screening:
    """What the classifiers say of one response, or of items added to a conversation.

    `admit` takes what is new, and waits for those who may change it. `begin` lets the others look, beside the engine;
    until they have, `may_hear` leaves its output in the mailbox. `output` gives what of an answer may leave.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        principal: Principal,
        *,
        model: str = "",
        carried: Carried | None = None,
        moderation: ModerationConfig | None = None,
        may_quote: bool = False,
    ) -> None:
        self.refusal: str | None = None
        """What to say in the place of an answer; None where one may be given."""
        self.has_forgotten = False
        """What was refused has been taken out of what is kept."""
        self._principal = principal
        self._model = model
        self._moderation = moderation
        self._may_quote = may_quote
        can = {seat.name: seat.classifier.capabilities_for(principal.project_id) for seat in seats}
        self._readers = [seat for seat in seats if can[seat.name].reads_input]
        self._redactors = {name for name, one in can.items() if one.redacts}
        self._given = carried
        carried = carried or Carried()
        self._inputs = dict(carried.inputs)
        self._inputs_before: dict[str, str] = {}
        """As they were before what was admitted last."""
        self._outputs = carried.outputs
        self._instructions = carried.instructions
        self._filters = {seat.name: self._filter(seat, can[seat.name]) for seat in seats if can[seat.name].reads_output}
        self._waiting: list[tuple[Seat, list[Passage], str]] = []
        """Looks that are still to be taken: by whom, at what, and what came before that."""
        self._failure: ApiError | None = None
        """A look that had to be taken could not be."""
        self._task: asyncio.Task[None] | None = None
        self._is_looking = False
        self._scores: dict[Side, Score] = {}
        self._response_id = ""
        self._strictest: dict[tuple[Side, str, str], str] = {}
        """By side, classifier and category, what was done."""
        self._untold: list[Raised] = []

    def belongs_to(self, response_id: str) -> None:
        """The id under which flags are raised."""
        self._response_id = response_id
        self._tell()

    async def admit(
        self, items: list[Item], instructions: str | list[Item] | None = None
    ) -> tuple[list[Item], str | list[Item] | None]:
        """What is new, as the model may see it; the same objects where nothing was changed. May set ``refusal``.

        Raises:
            Overloaded: a classifier without which nothing may pass cannot say anything.
        """
        if not self._readers:
            return items, instructions
        digest = hashlib.blake2b(msgspec.json.encode(instructions), digest_size=16).digest() if instructions else b""
        front = [] if digest == self._instructions else _front(instructions)
        self._instructions = digest or self._instructions
        self._inputs_before = dict(self._inputs)
        places, passages = passages_of([*front, *items])
        changed: dict[int, str] = {}
        for seat in self._readers:
            if seat.name not in self._redactors:
                continue
            before = self._carry(seat, passages)
            findings = self._noted(seat, "input", passages, await self._judge(seat, "input", passages, before))
            self._raise_failure()
            changed |= _redactions(passages, findings)
            passages = [
                Passage(changed[index], passage.source) if index in changed else passage
                for index, passage in enumerate(passages)
            ]
        if self.refusal is not None:
            return self.refused(items, instructions)
        # These see what is left: some of them tell it to another machine.
        others = [seat for seat in self._readers if seat.name not in self._redactors]
        self._waiting += [(seat, passages, self._carry(seat, passages)) for seat in others]
        if not changed:
            return items, instructions
        whole = rewritten([*front, *items], {places[index]: text for index, text in changed.items()})
        if front:
            instructions = whole[0]["content"] if isinstance(instructions, str) else whole[: len(front)]
        return whole[len(front) :], instructions

    def refused(
        self, items: list[Item], instructions: str | list[Item] | None
    ) -> tuple[list[Item], str | list[Item] | None]:
        """What is left of an input that was refused: nobody will read it again, the model in later turns included."""
        self._waiting.clear()
        self._inputs = self._inputs_before
        self.has_forgotten = True
        return blanked(items), REMOVED if instructions else instructions

    def refuse_again(self, refusal: str) -> None:
        """What was admitted before this was made has been refused, and taken out already."""
        self.refusal, self.has_forgotten = refusal, True

    def begin(self, mailbox: Mailbox[Word]) -> None:
        """Let those look who change nothing; the mailbox is told when they have, or one refuses. The turn goes on
        meanwhile."""
        if self._waiting:
            self._is_looking = True
            self._task = asyncio.get_running_loop().create_task(self._look_and_tell(mailbox))

    async def finish(self) -> None:
        """The same, waiting for all of them, where there is no engine to look beside. Raises Overloaded."""
        await self._look_all(None)

    async def _look_all(self, mailbox: Mailbox[Word] | None) -> None:
        waiting, self._waiting = self._waiting, []
        await asyncio.gather(*(self._look(seat, passages, before, mailbox) for seat, passages, before in waiting))
        if self.refusal is None:
            self._raise_failure()

    async def _look(self, seat: Seat, passages: Sequence[Passage], before: str, mailbox: Mailbox[Word] | None) -> None:
        verdict = await self._judge(seat, "input", passages, before)
        self._noted(seat, "input", passages, verdict, is_late=True)
        if self.refusal is not None and mailbox is not None:
            # Whatever the others would say.
            mailbox.put(Sign.SCREENED)

    async def summary(self, text: str) -> str | None:
        """A summary, as the model may see it from now on; None where it must not be used. Raises Overloaded."""
        (item,), _ = await self.admit([{"type": "message", "role": "assistant", "content": text}])
        await self.finish()
        if self.refusal is not None:
            # Not the client's doing: the answer goes on with the whole context.
            self.refusal, self.has_forgotten = None, False
            return None
        return str(item["content"])

    async def result(self, text: str) -> str:
        """What a hosted tool gave, as anybody may see it. May set ``refusal``. Raises Overloaded."""
        if not self._readers:
            return text
        (item,), _ = await self.admit([{"type": "function_call_output", "output": text}])
        await self.finish()
        if self.refusal is None:
            return str(item["output"])
        # Nothing else was refused with it.
        self.has_forgotten = True
        return REMOVED

    @property
    def may_hear(self) -> Callable[[Word], bool] | None:
        """Which words may be heard now; None: all."""
        return _is_no_output if self._is_looking else None

    async def output(self, deltas: list[Delta], *, is_end: bool = False) -> list[Delta]:
        """What of an answer may leave now; at its end, where the engine has not said so, all that may."""
        for one in self._filters.values():
            deltas = await one.feed(deltas)
            if is_end:
                deltas += await one.end()
        return deltas

    def held(self) -> list[Delta]:
        """What was held back and will not be told any more."""
        return [delta for one in self._filters.values() for delta in one.held()]

    @property
    def has_cut(self) -> bool:
        """The answer was cut: no engine need go on."""
        return any(one.has_cut for one in self._filters.values())

    @property
    def has_changed(self) -> bool:
        """The answer is not what the model has said."""
        return any(one.has_changed for one in self._filters.values())

    def stop(self) -> None:
        """The turn is over, whatever they would have said."""
        if self._task is not None:
            self._task.cancel()

    def carried(self) -> Carried | None:
        """What the next turn of the chain is to know."""
        if not self._readers and not self._filters:
            return self._given
        is_clean = not any(side == "input" for side, _name, _category in self._strictest)
        outputs = {name: one.before for name, one in self._filters.items()}
        return Carried(self._inputs, {**self._outputs, **outputs}, self._instructions if is_clean else b"")

    def moderation(self) -> JsonObject | None:
        """The response's ``moderation``; None where nobody has asked."""
        return None if self._moderation is None else {"input": self._told("input"), "output": self._told("output")}

    def _told(self, side: Side) -> JsonObject:
        assert self._moderation is not None, "asked by whoever is told"
        score = self._scores.get(side)
        if score is not None:
            return moderation_result(model=self._moderation.model, **msgspec.structs.asdict(score))
        if side == "output" and self._filters and not any(one.has_looked for one in self._filters.values()):
            return moderation_error("no_output", "There was no output to look at.")
        return moderation_error("moderation_unavailable", "The moderation model did not answer.")

    def _carry(self, seat: Seat, passages: Sequence[Passage]) -> str:
        """What came before these. They come before the next ones as they were said: what is taken out may go on."""
        before = self._inputs.get(seat.name, "")
        carries = seat.classifier.carries
        if carries:
            self._inputs[seat.name] = tail([before, *(passage.text for passage in passages)], carries)
        return before

    def _filter(self, seat: Seat, can: Capabilities) -> OutputFilter:
        return OutputFilter(
            partial(self._check_output, seat),
            before=self._outputs.get(seat.name, ""),
            carries=seat.classifier.carries,
            holds_back=can.holds_back,
            step=can.output_step,
        )

    async def _check_output(self, seat: Seat, passage: Passage, before: str) -> list[Finding]:
        verdict = await self._judge(seat, "output", [passage], before)
        if verdict is None and seat.fails_closed:
            return [Finding("unavailable", "refuse")]
        return self._noted(seat, "output", [passage], verdict)

    async def _look_and_tell(self, mailbox: Mailbox[Word]) -> None:
        word: Word = Sign.SCREENED
        try:
            await self._look_all(mailbox)
        except ApiError as exc:
            word = exc
        self._is_looking = False
        mailbox.put(word)

    async def _judge(self, seat: Seat, side: Side, passages: Sequence[Passage], before: str) -> Verdict | None:
        """One look; None where it has failed or comes too late."""
        material = Material(side, passages, before, self._principal.project_id, self._model)
        try:
            async with asyncio.timeout(seat.terms.seconds):
                return await seat.classifier.check(material)
        except Exception as exc:
            # Somebody else's code on somebody else's machine: what it means is said by its entry in the settings.
            logger.warning("Classifier %s cannot look at %s: %s", seat.name, self._response_id, type(exc).__name__)
            return None

    def _noted(
        self, seat: Seat, side: Side, passages: Sequence[Passage], verdict: Verdict | None, *, is_late: bool = False
    ) -> list[Finding]:
        """What is to be done, and a flag for everything that is new. ``is_late``: the model may have seen it."""
        if verdict is None:
            if side == "input" and seat.fails_closed:
                self._failure = Overloaded("The input could not be checked. Please try again later.")
            return []
        findings = list(verdict.findings)
        asked = self._moderation
        if verdict.score is not None and asked is not None and asked.model == seat.classifier.moderation_model:
            past = self._scores.get(side)
            self._scores[side] = verdict.score if past is None else past.joined(verdict.score)
            if verdict.score.flagged and asked.blocks(side):
                flagged = [category for category, is_so in verdict.score.categories.items() if is_so] or ["moderation"]
                findings += [Finding(one, "refuse", verdict.score.category_scores.get(one)) for one in flagged]
        if is_late:
            # A redaction that was not announced comes too late for the model.
            findings = [
                msgspec.structs.replace(finding, action="refuse") if finding.action == "redact" else finding
                for finding in findings
            ]
        if side == "input" and any(finding.action == "refuse" for finding in findings):
            self.refusal = app_settings.SAFETY_REFUSAL
        if side == "input" and any(not finding.spans for finding in findings):
            # Found in all of it: the next turn is not to be judged by this one.
            self._inputs[seat.name] = ""
        for finding in findings:
            self._note(seat.name, side, passages, finding, findings)
        self._tell()
        return findings

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _note(
        self, name: str, side: Side, passages: Sequence[Passage], finding: Finding, among: Sequence[Finding]
    ) -> None:
        category = finding.category[:100]
        done = self._strictest.get((side, name, category))
        if done is not None and _STRICTNESS.index(done) >= _STRICTNESS.index(finding.action):
            return
        self._strictest[side, name, category] = finding.action
        excerpt = excerpt_of(passages, finding, among) if self._may_quote else ""
        self._untold.append(Raised(side, name, category, finding.action, finding.score, excerpt))

    def _tell(self) -> None:
        if self._untold and self._response_id:
            raised, self._untold = self._untold, []
            raise_flags(self._principal, self._response_id, self._model, raised)


def open_screening(principal: Principal, request: Request, parent: Link | None) -> Screening:
    """For one response, which continues ``parent``.

    Raises:
        InvalidRequest: it asks for a moderation model that nobody here serves.
    """
    asked = request.moderation
    wanted = None if asked is None else asked.model
    model = request.model or ""
    seats = [seat for seat in classifiers.seats() if seat.looks_at(model, principal.project_id, wanted)]
    if wanted is not None and all(seat.classifier.moderation_model != wanted for seat in seats):
        raise InvalidRequest(
            f"The moderation model {wanted[:100]!r} is not served here.",
            code="unsupported_value",
            param="moderation.model",
        )
    carried: Carried | None = None if parent is None else parent.safety
    if parent is not None and not all(is_carried(seat, carried) for seat in seats):
        carried = derived(parent.items, seats)
    return Screening(seats, principal, model=model, carried=carried, moderation=asked, may_quote=request.is_stored)


def no_screening(principal: Principal) -> Screening:
    """For input that no model will see."""
    return Screening((), principal)


async def screened(principal: Principal, items: list[Item], *, added_to: str) -> list[Item]:
    """Items that a client adds to a conversation, as they may be kept.

    Raises:
        InvalidRequest: a classifier refuses them.
        Overloaded: one cannot say anything.
    """
    # Which model will see them is not known: whoever looks at the project looks at them.
    seats = [
        seat
        for seat in classifiers.seats()
        if seat.looks_at(seat.terms.models[0] if seat.terms.models else "", principal.project_id, None)
    ]
    screening = Screening(seats, principal, may_quote=True)
    screening.belongs_to(added_to)
    items, _ = await screening.admit(items)
    await screening.finish()
    if screening.refusal is not None:
        raise InvalidRequest(screening.refusal, code="content_policy_violation", param="items")
    return items


def _front(instructions: str | list[Item] | None) -> list[Item]:
    if isinstance(instructions, str):
        return [{"type": "message", "role": "instructions", "content": instructions}]
    return instructions or []


def _redactions(passages: Sequence[Passage], findings: Sequence[Finding]) -> dict[int, str]:
    """The texts of those passages from which something is to be taken out."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for finding in findings:
        if finding.action == "redact":
            for span in finding.spans:
                spans.setdefault(span.passage, []).append((span.start, span.end))
    return {index: redacted(passages[index].text, where) for index, where in spans.items()}


def _is_no_output(word: Word) -> bool:
    """Not of the engine's answer: neither a piece of it, nor its end, however that came."""
    return not isinstance(word, list | EngineError) and word is not Sign.ENDED
