"""Any server with OpenAI's ``POST /v1/moderations``."""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from .base import Capabilities, Classifier, Finding, Material, Score, Verdict

MAX_ANSWER_BYTES = 1024 * 1024
# One text of a request; longer ones are asked in parts, in one request.
CHARACTERS_PER_TEXT = 8000


class ModerationOptions(msgspec.Struct, rename="upper", kw_only=True, forbid_unknown_fields=True):
    """Options of `ModerationEndpoint`. A threshold is a score from 0 to 1; ``"*"`` stands for every other category."""

    base_url: str
    """With its ``/v1``: ``https://api.openai.com/v1``."""
    api_key: str = ""
    model: str = "omni-moderation-latest"
    """The endpoint's own name of the model."""
    offered_as: str = ""
    """The name that clients use in ``moderation.model``; empty: the same."""
    flag: dict[str, float] = {}
    """From which score on a category is flagged; without one, what the endpoint itself flags."""
    refuse: dict[str, float] = {}
    """From which score on it is refused, or an answer cut."""
    holds_back: int = 0
    output_step: int = 400
    """Characters of an answer between two requests."""
    reads_output: bool = True


class _Result(msgspec.Struct):
    """Source: the official ``Moderation`` type; other servers leave out the kinds of input."""

    flagged: bool = False
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, float | None] = {}
    category_applied_input_types: dict[str, list[str]] = {}


class _Answer(msgspec.Struct):
    results: list[_Result]


_decode = msgspec.json.Decoder(_Answer).decode


class ModerationEndpoint(Classifier):
    """Asks a moderation model over HTTP: texts only, those of one turn in one request."""

    carries = 400

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        try:
            self._options = msgspec.convert(dict(options), ModerationOptions, strict=False)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from exc
        parts = urlsplit(self._options.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"BASE_URL must be an http(s) URL, not {self._options.base_url!r}")
        self.moderation_model = self._options.offered_as or self._options.model
        self.capabilities = Capabilities(
            reads_output=self._options.reads_output,
            holds_back=self._options.holds_back,
            output_step=self._options.output_step,
        )
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def check(self, material: Material) -> Verdict:
        said = "\n".join(passage.text for passage in material.passages)
        # What went before joins on without a space: a word may be cut in two.
        text = material.before + said
        texts = [text[start : start + CHARACTERS_PER_TEXT] for start in range(0, len(text), CHARACTERS_PER_TEXT)]
        if not said.strip():
            return Verdict(score=Score(False, {}, {}, {}))
        score = functools.reduce(Score.joined, map(_score, await self._ask(texts)))
        return Verdict(self._findings(score), score)

    async def _ask(self, texts: list[str]) -> list[_Result]:
        """Raises what it likes: the pipeline knows what to do without an answer."""
        url = f"{self._options.base_url.rstrip('/')}/moderations"
        body = msgspec.json.encode({"model": self._options.model, "input": texts})
        async with self._connections().post(url, data=body, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ConnectionError(f"the moderation endpoint answered with {answer.status}")
            raw = await answer.content.read(MAX_ANSWER_BYTES)
            while not answer.content.at_eof():
                raw += await answer.content.read(MAX_ANSWER_BYTES)
                if len(raw) > MAX_ANSWER_BYTES:
                    raise ConnectionError("the moderation endpoint answers without end")
        results = _decode(raw).results
        if len(results) != len(texts):
            raise ConnectionError(f"the moderation endpoint gave {len(results)} results for {len(texts)} texts")
        return results

    def _findings(self, score: Score) -> list[Finding]:
        findings = []
        options = self._options
        for category in score.categories.keys() | score.category_scores.keys():
            value = score.category_scores.get(category)
            is_flagged = score.categories.get(category, False)
            if value is not None and value >= options.refuse.get(category, options.refuse.get("*", 2.0)):
                findings.append(Finding(category, "refuse", value))
                continue
            threshold = options.flag.get(category, options.flag.get("*"))
            if is_flagged if threshold is None or value is None else value >= threshold:
                findings.append(Finding(category, "flag", value))
        return sorted(findings, key=lambda finding: finding.category)

    def _connections(self) -> aiohttp.ClientSession:
        """The pool of the running loop; one of another loop is left to that loop's end."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop or self._session.closed:
            if self._session is not None:
                self._session.detach()
            headers = {"Content-Type": "application/json"}
            if self._options.api_key:
                headers["Authorization"] = f"Bearer {self._options.api_key}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                # The pipeline has the clock.
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._loop = loop
        return self._session

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()


def _score(result: _Result) -> Score:
    """As the official type wants it: with numbers and kinds of input for all."""
    categories = {category: bool(is_flagged) for category, is_flagged in result.categories.items()}
    return Score(
        result.flagged,
        categories,
        {category: score or 0.0 for category, score in result.category_scores.items()},
        {category: result.category_applied_input_types.get(category) or ["text"] for category in categories},
    )
