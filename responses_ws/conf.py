"""`app_settings`: the typed, lazy view of the one dict `RESPONSES_WS`.

Import ``app_settings`` and read an attribute when you need its value; nothing is bound earlier, so tests and
`override_settings` work. An unknown key is a system-check error (`checks.py`), never a silent typo.
"""

import dataclasses
from functools import cached_property
from typing import Any, Literal

import msgspec
from django.conf import settings
from django.core.signals import setting_changed

from responses_ws.connection.limits import Limits
from responses_ws.connection.rates import Rates


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every key of ``RESPONSES_WS`` with its default. The docstring below a field is its line in the reference."""

    ENGINES: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Engines by name: ``{"main": {"ENGINE": "responses_ws.engines.openai_chat.OpenAIChat", "BASE_URL": "http://127.0.0.1:8001/v1"}}``.
    ``ENGINE`` is the dotted path of an `Engine`; ``CONCURRENCY``, if given, how many calls each process makes to it at
    once, and ``QUEUE`` (default: eight times that) how many may wait; the other keys are that engine's options."""
    MODELS: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Models by the name clients use: ``{"my-model": {"ENGINE": "main", "UPSTREAM": "Qwen/Qwen3-8B"}}``. ``UPSTREAM``
    (default: the same name) is the engine's own name for it; ``CONTEXT`` how many tokens it can read and write, for
    ``truncation`` and ``context_management`` (default: what the engine lists); ``RENDERER`` what makes its token ids.
    ``REPLICAS`` in the place of ``ENGINE`` names several engines that answer for it, as in
    ``[{"ENGINE": "a", "WEIGHT": 2}, {"ENGINE": "b", "UPSTREAM": "qwen"}]``. ``"gpt-5": {"ALIAS": "my-model"}`` is
    another name for a model. ``"*": {"ENGINE": "main"}`` serves whatever that engine lists, under its names."""
    TOOLS: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Hosted tools by name: ``{"web": {"TOOL": "responses_ws.tools.web_search.WebSearch", "PROVIDER": "…"}}``. ``TOOL``
    is the dotted path of a `HostedTool`; the other keys are that tool's options. Kinds that nobody answers for are
    accepted in requests, and not offered to the model."""
    AUTHENTICATOR: str = "responses_ws.transports.authentication.ApiKeyAuthenticator"
    """Dotted path of the class that turns an ``Authorization`` header into a principal. Write your own to use the
    accounts that your project already has."""
    REDIS_URL: str = ""
    """Where stored chains are shared between workers, for example ``redis://127.0.0.1:6379/1``, or
    ``redis+cluster://127.0.0.1:6379``. Empty: through the database only."""
    LIMITS: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Overrides of single limits, by the names of `Limits` (see below)."""
    RATES: dict[str, int] = dataclasses.field(default_factory=dict)
    """What each API key may ask for, where neither it nor its project says otherwise: ``requests_per_minute``,
    ``tokens_per_minute``, ``concurrent_turns``, ``open_sockets``. What is not named is not limited. Counted in Redis
    for all processes, or by each for itself where there is none."""
    BUDGETS_WITHOUT_REDIS: Literal["process", "refuse", "allow"] = "process"
    """What happens to turns that have a budget while ``REDIS_URL`` does not answer. ``"process"``: each process counts
    by itself, so that at worst each of them spends once what is left. ``"refuse"``: they get a 503, and nothing is
    overspent. ``"allow"``: they pass uncounted, and nobody is refused for a budget."""
    BUDGET_OUTPUT_TOKENS: int = 4096
    """Tokens of output that budgets hold for a turn whose request has no ``max_output_tokens``. A longer answer is
    finished all the same, and what it costs may go beyond the budget."""
    BILLING_SINKS: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Other billing systems that are told of every entry of the ledger, by name: ``{"books": {"SINK":
    "responses_ws.billing.sinks.webhook.Webhook", "URL": "https://…"}}``. ``SINK`` is the dotted path of a `Sink`; the
    other keys are its options. A name is kept: what waits for a sink that is not here any more waits on."""
    WEBHOOK_SECRET: str = ""
    """What our webhooks are signed with, as Standard Webhooks are: ``whsec_`` and base64, or any text. Empty: they are
    not signed."""
    WEBHOOK_ORIGINS: list[str] = dataclasses.field(default_factory=list)
    """``scheme://host:port`` of your own, which webhooks may go to wherever they are. Others have to be public, and
    ``https`` on port 443."""
    STORE_DAYS: int = 30
    """Days that a response with ``store: true`` can be found again."""
    EVENT_HOURS: float = 24
    """Hours that the events of a background stream can be told again; its response stays. `responses_ws_prune` deletes
    what is older."""
    BACKGROUND_RUNNERS: bool = False
    """Web workers accept background responses and leave them to ``responses_ws_background``. Off: they run them
    themselves, and take over what other processes have left."""
    RAW_REASONING: bool = True
    """Show the raw reasoning of models that tell it. Off: only the beginning of it, and only to clients that ask for a
    summary."""
    SEALING_KEYS: list[str] = dataclasses.field(default_factory=list)
    """Secrets under which ``encrypted_content`` is sealed, 32 characters or more each. The first one seals, all of them
    open: put a new one in front, and take an old one away when what it has sealed has expired. Empty: ``SECRET_KEY``
    and ``SECRET_KEY_FALLBACKS``."""
    SEALED_DAYS: int = 30
    """Days that sealed content can be brought back by a client."""
    SAFETY: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Classifiers of what comes in and goes out, in order: ``[{"CLASSIFIER": "responses_ws.safety.rules.Rules"}]``.
    ``CLASSIFIER`` is the dotted path of a `Classifier`; ``NAME`` is what flags call it; ``SECONDS`` (2) is its time
    limit; ``FAIL`` says what happens when it is down or late, ``"closed"`` (the default) or ``"open"``; ``MODELS`` and
    ``PROJECTS`` (ids) confine it; with ``WHEN_ASKED`` it looks only at requests that ask for it by ``moderation``. The
    other keys are its own options."""
    SAFETY_REFUSAL: str = "I'm sorry, but I can't help with that."
    """What a client is told in the place of an answer when its input was refused."""
    SSE_DONE: bool = True
    """End SSE streams with ``data: [DONE]``, as the Open Responses specification asks; every known client takes it."""
    API_DOCS: bool = True
    """Serve ``openapi.json``, ``asyncapi.json`` and the page ``docs`` beside the endpoints, to everybody and without a
    key: they hold no secrets. Off: 404."""
    PLAYGROUND: bool | None = None
    """Serve the playground in the admin, to staff with the permission ``use_playground``. None: where ``DEBUG`` is
    on."""
    METRICS_TOKEN: str = ""
    """The bearer token with which Prometheus may read ``/metrics`` of `responses_ws.monitoring`. Empty: 404."""
    TRACING: bool = False
    """Spans of turns for OpenTelemetry, through whatever provider your project has set up; needs the extra ``otel``.
    Read when the process starts."""
    WEBSOCKET: bool = True
    """Off: every handshake is answered with 426, after which clients that can go to HTTP. Turns on open sockets go on.
    Under a server that cannot refuse with a status (daphne) the socket opens, gets that error, and closes with 1008.
    On, the admin's shares of WebSocket mode decide."""
    ALLOWED_ORIGINS: list[str] = dataclasses.field(default_factory=list)
    """Values of the ``Origin`` header that may open a socket. Programs send none and need a key; a browser page from
    another site is refused. Where the playground is on, pages of the same host may, too."""
    CUT_REVOKED: bool = False
    """End running turns of a key that is revoked. Off: they finish, and their socket closes then; new turns are refused
    either way."""
    BILL_CANCELLED: bool = True
    """Bill what the engine made before the client left."""
    BILL_WARMUP: bool = False
    """Bill the input of ``generate: false`` requests. Off: the engine did no work, the ledger says so."""
    BILL_ABANDONED: bool = True
    """Bill up to the last checkpoint when the serving process died, and what was made by then when it had to end before
    the turn."""
    INVOICES: Literal["off", "postpaid", "all"] = "off"
    """Who gets an invoice for each month in which they used something: nobody, organisations that are not prepaid, or
    all of them; what was taken of credit is not asked for again."""
    INVOICE_FINALIZE: bool = True
    """Finalise drafts when their grace is over. Off: somebody does it in the admin."""
    INVOICE_GRACE_HOURS: float = 48
    """How long a draft waits for usage that comes late, and for somebody to look at it."""
    INVOICE_NET_DAYS: int = 14
    """Days until an invoice is due."""
    INVOICE_NUMBER: str = "INV-{organization:04}-{number:05}"
    """How the number of an invoice is printed: ``{number}`` counts the organisation's invoices without gaps,
    ``{organization}`` is its id, ``{year}`` that of the period. The first two are needed: each number is there once."""
    CREDIT_NOTE_NUMBER: str = "CN-{organization:04}-{number:05}"
    """The same for credit notes, which have a series of their own."""
    INVOICE_ISSUER: str = ""
    """Your name, address and tax number, as they are printed on invoices."""
    BILLING_QUEUE: str = "responses_ws.billing"
    """Celery queue of the billing tasks."""
    DEAF_WORKER_SECONDS: float = 60
    """A Celery worker that is idle, and to which for so long nothing has come of what waits in its queues, ends with
    exit code 1, for whoever has started it to start it again. 0: it stays."""
    DURABILITY: Literal["commit", "journal"] = "commit"
    """What the terminal event waits for. ``"commit"``: the database has the response and its counts. ``"journal"``: a
    file of this process in ``JOURNAL_DIR`` has them, and the database some milliseconds later; a restart on this
    machine replays what a killed process has left there. The first output waits for the same: that its usage record is
    begun."""
    JOURNAL_DIR: str = ""
    """A directory on a local disk for journals, shared by the processes of one machine and kept over restarts, of
    containers too. Also where, with either durability, counts are kept when the database is down at the end of a
    turn. Empty: no journal."""
    JOURNAL_FSYNC: bool = False
    """With ``"journal"``: wait until the disk has it, too. Off, a killed process loses nothing, and a loss of power
    what was told in the last seconds."""
    DATABASE_THREADS: int = 4
    """Threads, and so database connections, per process for reading."""

    @property
    def limits(self) -> Limits:
        """The limits as the pure rooms take them."""
        return msgspec.convert(self.LIMITS, Limits, strict=False)

    @property
    def rates(self) -> Rates:
        """The default rates of a key."""
        return msgspec.convert(self.RATES, Rates)

    @property
    def is_playground_on(self) -> bool:
        return settings.DEBUG if self.PLAYGROUND is None else self.PLAYGROUND


_NAMES = frozenset(field.name for field in dataclasses.fields(Settings))


class _LazySettings:
    """Reads ``settings.RESPONSES_WS`` at first use and again after every change.

    What has been read is an attribute from then on: a turn looks at some twenty.
    """

    @cached_property
    def _loaded(self) -> Settings:
        given = getattr(settings, "RESPONSES_WS", {})
        return Settings(**{key: value for key, value in given.items() if key in _NAMES})

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._loaded, name)
        if name in _NAMES:
            self.__dict__[name] = value
        return value

    # Only when they are asked for: other settings can be read where one of these is no good, and the checks say so.
    @cached_property
    def limits(self) -> Limits:
        return self._loaded.limits

    @cached_property
    def rates(self) -> Rates:
        return self._loaded.rates

    def reload(self, *, setting: str, **_kwargs: Any) -> None:
        if setting == "RESPONSES_WS":
            self.__dict__.clear()


app_settings = _LazySettings()
setting_changed.connect(app_settings.reload)
