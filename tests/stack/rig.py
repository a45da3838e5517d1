"""Web servers, a Celery worker, both Redis, a database and a model server as processes that tests break."""

import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from responses_ws.runtime.rates import SLOT_SECONDS
from tests.forking import Forker
from tests.live import ModelServer, Process, Redis, Server, TokenLog, until
from tests.ports import free_port
from tests.proxy import Proxy

from .composefile import read_services
from .images import ROOT, Place
from .stack import Running
from .turns import SECONDS, Client, History

PRICES = """
from responses_ws.models import Price
for model in ("scripted", "fake-chat"):
    for component, nano in (("input", 2_500_000_001), ("cached_input", 250_000_003), ("output", 10_000_000_007)):
        Price.objects.create(model=model, component=component, nano_per_million=nano)
"""
KEY = """
from responses_ws.models import ApiKey, Organization, Project
organization, _ = Organization.objects.get_or_create(name={name!r})
project, _ = Project.objects.get_or_create(organization=organization, name={name!r})
print(ApiKey.objects.create_with_secret(project=project, name={name!r}).secret)
"""
LEASE_SECONDS = 3
"""Of background responses: so long after the death of their process another one goes on."""
RUNS = "from responses_ws.models import BackgroundRun; print(BackgroundRun.objects.count())"
REAP = """
from datetime import timedelta
from django.utils import timezone
from responses_ws.billing import ledger
from responses_ws.serving.replay import replay
replay()
print(ledger.reap(timezone.now() + timedelta(hours=1)))
"""
"""As the task does it, an hour later: no lease lasts that long."""
POSTINGS = """
import json
from responses_ws.models import Posting
print(json.dumps(list(Posting.objects.order_by("id").values_list("id", "journal_id", "account_id", "amount_nano"))))
"""
BOOKS = """
import json
from datetime import timedelta
from django.utils import timezone
from responses_ws.billing.reconcile import reconcile
from responses_ws.models import Journal, StoredResponse, UsageRecord
fields = ("response_id", "status", "reason", "model", "transport", "is_warmup", "estimated", "project_id",
          "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
records = [
    {**{name: getattr(record, name) for name in fields}, "is_billed": record.billed_at is not None,
     "entries": Journal.objects.filter(usage=record).count()}
    for record in UsageRecord.objects.order_by("id")
]
print(json.dumps({
    "records": records,
    "stored": dict(StoredResponse.objects.values_list("id", "status")),
    "differences": [str(difference) for difference in reconcile(timezone.now() + timedelta(hours=1))],
}))
"""


class Web(Server):
    """A web server, forked; ``fault`` is what its process is to break on."""

    def __init__(self, rig: "Rig", name: str, fault: str = "") -> None:
        super().__init__(directory=rig.directory, name=name)
        self.rig = rig
        self.fault = fault
        self.command = [*self.command[1:], "--skip-checks"]
        self.patience = SECONDS
        self.at_first: dict[str, int] | None = None
        """What it had open when it was first looked at."""

    def launch(self) -> Any:
        return self.rig.forker.fork(self.command, log=self.log, environment={"RESPONSES_WS_FAULT": self.fault})

    def client(self, key: str | None = None, tenant: str = "mine-1f0c") -> Client:
        return Client(self.url, key or self.rig.key, self.rig.history, tenant, self.patience)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def died(self) -> int:
        """Wait until it has died; what of."""
        assert self.process is not None
        return self.process.wait(15)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def metrics(self) -> str:
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": "Bearer rig"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def turns_running(self) -> int:
        found = re.search(r"^responses_ws_turns_running(?:\{[^}]*\})? (\d+)", self.metrics(), re.MULTILINE)
        assert found is not None, "the metrics tell of running turns"
        return int(found[1])

    def resources(self) -> dict[str, int]:
        """Open files and threads of its process."""
        assert self.process is not None
        directory = Path(f"/proc/{self.process.pid}")
        return {"files": len(list((directory / "fd").iterdir())), "threads": len(list((directory / "task").iterdir()))}


class Worker(Process):
    """A Celery worker, forked. ``solo``: its tasks run in its one process."""

    def __init__(self, rig: "Rig", name: str = "worker", *, fault: str = "", pool: str = "solo") -> None:
        command = ["celery", "-A", "project", "worker", "-n", f"{name}@rig", "-Q", "responses_ws.billing"]
        command += ["-P", pool, "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        super().__init__(command, directory=rig.directory / name)
        self.rig = rig
        self.fault = fault

    def launch(self) -> Any:
        return self.rig.forker.fork(self.command, log=self.log, environment={"RESPONSES_WS_FAULT": self.fault})

    def wait_until_ready(self) -> None:
        self.said(r"\[queues\]")

    def died(self) -> int:
        assert self.process is not None
        return self.process.wait(15)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Beat(Process):
    """Celery's clock, forked: the sweep every five seconds."""

    def __init__(self, rig: "Rig") -> None:
        directory = rig.directory / "beat"
        schedule = ["--schedule", str(directory / "schedule"), "--pidfile", ""]
        super().__init__(["celery", "-A", "project", "beat", *schedule], directory=directory)
        self.rig = rig

    def launch(self) -> Any:
        return self.rig.forker.fork(self.command, log=self.log)


class Rig:
    """A context manager. Web servers ``a``, to be broken, and ``b``, which stays well, share everything but memory.

    ``engine_link``, ``redis_link``, ``broker_link`` and, with ``postgres``, ``database_link`` are proxies on the way
    from servers and workers to what is behind them.
    """

    def __init__(self, directory: Path, *, postgres: bool = False, environment: dict[str, str] | None = None) -> None:
        self.directory = directory
        # PostgreSQL may run as another user.
        directory.chmod(0o755)
        self.has_postgres = postgres
        self.more_environment = environment or {}
        self.history = History()
        self._interruptions: list[float] = []
        self.checked: set[str] = set()
        """Usage records, by response id, that were right at an earlier check."""
        self._open = ExitStack()
        self._processes: list[Process] = []
        self._read: dict[Path, int] = {}

    def __enter__(self) -> "Rig":
        with ExitStack() as opened:
            self.engine = opened.enter_context(ModelServer(directory=self.directory / "engine"))
            self.redis = opened.enter_context(Redis(directory=self.directory / "redis-state"))
            self.broker = opened.enter_context(Redis("--appendonly", "yes", directory=self.directory / "broker"))
            self.engine_link = opened.enter_context(Proxy(self.engine.url))
            self.redis_link = opened.enter_context(Proxy(self.redis.url))
            self.broker_link = opened.enter_context(Proxy(self.broker.url))
            if self.has_postgres:
                self.postgres = start_postgres(self.directory / "postgres")
                opened.callback(self.postgres.stop)
                port = self.postgres.place.port
                self.database_link = opened.enter_context(Proxy(f"postgres://rig:rig@127.0.0.1:{port}/rig"))
            self.forker = opened.enter_context(
                Forker(directory=self.directory / "forker", environment=self.environment())
            )
            self.run("from django.core.management import call_command; call_command('migrate', verbosity=0)")
            self.run(PRICES)
            self.key = self.create_key("rig")
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for process in self._processes:
            process.stop()
        self._open.close()

    def environment(self) -> dict[str, str]:
        one = Server(
            directory=self.directory,
            engine_url=self.engine_link.url,
            redis_url=self.redis_link.url,
            rates={"concurrent_turns": 1_000},
            limits={"background_lease_seconds": LEASE_SECONDS},
        )
        self.scripted_tokens = one.tokens
        one.tokens.path.parent.mkdir(exist_ok=True)
        given = {"CELERY_BROKER_URL": self.broker_link.url, "METRICS_TOKEN": "rig"}
        if self.has_postgres:
            given["DATABASE_URL"] = self.database_link.url
        return one.environment | given | self.more_environment

    def interrupted(self, turns: int = 1) -> None:
        """So many turns were running in a process that has been killed now."""
        self._interruptions += [time.monotonic()] * turns

    @property
    def may_be_held(self) -> int:
        """Places of turns that died so lately that nobody can know it yet."""
        return sum(time.monotonic() - at < SLOT_SECONDS + 2 for at in self._interruptions)

    def run(self, code: str) -> str:
        return self.forker.run(code)

    def create_key(self, name: str) -> str:
        """A key of a project of its own."""
        return self.run(KEY.format(name=name)).strip()

    def web(self, name: str, fault: str = "") -> Web:
        """Start one; it is stopped with the rig at the latest."""
        return self._started(Web(self, name, fault))

    def worker(self, name: str = "worker", **options: Any) -> Worker:
        return self._started(Worker(self, name, **options))

    @contextmanager
    def working(self, count: int = 1, **options: Any) -> Iterator[list[Worker]]:
        """So many workers, which end with the block."""
        workers = [self.worker(f"worker{number}", **options) for number in range(count)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.stop()

    def beat(self) -> Beat:
        return self._started(Beat(self))

    def _started(self, process: Any) -> Any:
        process.start()
        self._processes.append(process)
        return process

    def token_logs(self) -> list[TokenLog]:
        """The model server's, and those of the engines within the servers."""
        return [self.engine.tokens, self.scripted_tokens]

    def queued(self) -> int:
        """Messages that no worker has taken."""
        with self.broker.client() as client:
            return cast(int, client.llen("responses_ws.billing"))

    def unbilled(self) -> int:
        return int(self.run("from responses_ws.models import *; print(UsageRecord.objects.unbilled().count())"))

    def books(self) -> dict[str, Any]:
        """``records``, each with its number of entries; ``stored`` responses' statuses; ``differences``."""
        return json.loads(self.run(BOOKS))

    def postings(self) -> list[Any]:
        return json.loads(self.run(POSTINGS))

    def forget(self) -> None:
        """What the books hold now is a test's own business, and checked by it."""
        self.checked |= {record["response_id"] for record in self.books()["records"]}
        self.history.clear()

    def settle(self, *, bills: bool = True) -> dict[str, Any]:
        """Wait for what still runs, close what dead processes left, bill; the books then."""
        until(self.is_quiet, "the turns of living servers to end", seconds=30)
        until(
            lambda: self.run(RUNS).strip() == "0", "background responses of dead servers to be taken over", seconds=30
        )
        self.run(REAP)
        if bills:
            self.run("from responses_ws.billing import ledger; ledger.bill_all()")
        return self.books()

    def servers(self) -> list[Web]:
        """Those that run."""
        return [process for process in self._processes if isinstance(process, Web) and process.is_running()]

    def is_quiet(self) -> bool:
        return not any(server.turns_running() for server in self.servers())

    def excuse(self, process: Process) -> None:
        """What it has logged so far was to be expected."""
        self._read[process.log] = len(process.output())

    def trouble(self) -> list[str]:
        """Lines of the logs since the last time that no healthy process writes."""
        found = []
        for process in self._processes:
            position = self._read.get(process.log, 0)
            found += [f"{process.directory.name}: {line}" for line in process.trouble(position)]
            self._read[process.log] = len(process.output())
        return found


def start_postgres(home: Path) -> Running:
    """The service of docker-compose.yml, with a user and a database called ``rig``."""
    environ = {"POSTGRES_USER": "rig", "POSTGRES_PASSWORD": "rig", "POSTGRES_DB": "rig"}
    service = read_services(ROOT / "docker-compose.yml", environ)["postgres"]
    service.environment.update(environ)
    home.mkdir()
    port = free_port()
    running = Running(service, Place(home=home, ports={5432: port}, names={("postgres", 5432): port}))
    running.image.prepare(service, running.place)
    start_again(running)
    return running


def start_again(running: Running) -> None:
    running.start()
    until(running.check, f"{running.service.name} to be healthy", seconds=60)


@contextmanager
def paused(*processes: Process) -> Iterator[None]:
    """They stand still within the block."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)
