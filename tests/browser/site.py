"""A live server with people who may log in, for tests in a browser."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext

from tests.live import Server

BOSS = "boss"
PASSWORD = "the-password-of-the-boss"


class Site(Server):
    """The demo project with its static files, and members of staff who are logged in by a cookie.

    ``people`` are their code names of permissions by user name; ``boss`` is a superuser. ``seed`` is the dotted path of
    a function in a module of these tests that fills the database by the ORM and returns something that JSON can say,
    which is then ``seeded``.
    """

    seeded: Any = None
    sessions: Mapping[str, str]

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def fill(self, people: Mapping[str, Sequence[str]], seed: str) -> None:
        """One process that makes the people, and the rows of ``seed``."""
        asked = json.dumps({"people": people, "seed": seed})
        told = json.loads(self.run(sys.executable, "-m", "tests.browser.filling", asked))
        self.sessions, self.seeded = told["sessions"], told["seeded"]

    async def log_in(self, context: BrowserContext, user: str = BOSS) -> None:
        """This user is logged in on all pages of the context."""
        await context.add_cookies([{"name": "sessionid", "value": self.sessions[user], "url": self.url}])


def prepare(directory: Path, environment: Mapping[str, str] | None = None) -> Path:
    """An empty database and the static files, to be copied for each site. ``environment`` is more of the commands'."""
    server = Server(directory=directory, name="prepare")
    server.environment |= environment or {}
    server.migrate()
    server.manage("collectstatic", "--no-input", "-v", "0")
    return directory


@contextmanager
def running(
    prepared: Path,
    directory: Path,
    *,
    people: Mapping[str, Sequence[str]] | None = None,
    seed: str = "",
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Site]:
    """A site on a copy of ``prepared``. ``environment`` is more of the process's, ``options`` are those of `Server`."""
    shutil.copytree(prepared, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("prepare"))
    site = Site(directory=directory, **options)
    site.environment |= environment or {}
    site.fill(people or {}, seed)
    with site:
        yield site
        # Django logs whom it turns away with a traceback.
        trouble = [line for line in site.trouble() if "PermissionDenied" not in line]
        assert not trouble, site.output()
