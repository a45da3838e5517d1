"""docker-compose.yml as values: the part of the format that our file uses, and an error for the rest."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

INTERPOLATION = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\})")
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
KNOWN = {
    *("build", "image", "command", "environment", "expose", "ports", "volumes", "depends_on"),
    *("healthcheck", "stop_signal", "stop_grace_period", "restart", "profiles", "configs", "logging"),
}


@dataclass(frozen=True)
class Service:
    """One service as the file says it; ``ports`` are those inside the container."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    ports: tuple[int, ...]
    volumes: tuple[tuple[str, str], ...]
    """(named volume or path on the host, path in the container)."""
    depends_on: dict[str, str]
    """Service name to condition."""
    health: tuple[str, ...]
    stop_signal: str
    stop_grace_seconds: float
    profiles: tuple[str, ...] = ()
    """It runs where one of these is asked for; without any, always."""

    @property
    def is_job(self) -> bool:
        """Meant to end: others wait for its success, not for its health."""
        return not self.health


def read_services(path: Path, environ: Mapping[str, str]) -> dict[str, Service]:
    """All services by name. ``environ`` fills ``${NAME:-default}``."""
    document = interpolate(yaml.safe_load(path.read_text()), environ)
    return {name: service(name, entry) for name, entry in document["services"].items()}


def interpolate(value: Any, environ: Mapping[str, str]) -> Any:
    """``value`` with every ``${NAME:-default}`` in it replaced, as docker compose does it."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        # ":-" takes the default for an empty value too.
        return environ.get(name) or match["default"] or ""

    match value:
        case str():
            return INTERPOLATION.sub(replace, value)
        case list():
            return [interpolate(item, environ) for item in value]
        case dict():
            return {key: interpolate(item, environ) for key, item in value.items()}
    return value


def service(name: str, entry: dict[str, Any]) -> Service:
    unknown = set(entry) - KNOWN
    if unknown:
        raise ValueError(f"service {name}: this runner does not know {sorted(unknown)}")
    command = entry.get("command", ())
    depends_on = entry.get("depends_on", {})
    if isinstance(depends_on, list):
        depends_on = {other: {"condition": "service_started"} for other in depends_on}
    published = [str(port).rpartition(":")[2] for port in entry.get("ports", [])]
    return Service(
        name=name,
        image=entry.get("image", "app"),
        command=tuple(shlex.split(command) if isinstance(command, str) else map(str, command)),
        environment={key: str(value) for key, value in entry.get("environment", {}).items()},
        ports=tuple(int(port) for port in [*entry.get("expose", []), *published]),
        volumes=tuple(tuple(volume.split(":")[:2]) for volume in entry.get("volumes", [])),
        depends_on={other: condition["condition"] for other, condition in depends_on.items()},
        health=health_command(entry.get("healthcheck", {}).get("test", [])),
        stop_signal=entry.get("stop_signal", "SIGTERM"),
        stop_grace_seconds=seconds(entry.get("stop_grace_period", "10s")),
        profiles=tuple(entry.get("profiles", ())),
    )


def health_command(test: str | list[str]) -> tuple[str, ...]:
    if isinstance(test, str):
        return ("sh", "-c", test)
    if test and test[0] == "CMD-SHELL":
        return ("sh", "-c", *test[1:])
    return tuple(test[1:])


def seconds(duration: str) -> float:
    """``1m30s`` as seconds."""
    return sum(float(number) * SECONDS[unit] for number, unit in DURATION.findall(duration))
