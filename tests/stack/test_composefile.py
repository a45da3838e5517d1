"""Reading docker-compose.yml."""

from pathlib import Path

import pytest

from .composefile import health_command, interpolate, read_services, seconds, service
from .images import ROOT, Place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("${PORT:-8080}:80", "8080:80", id="default"),
        pytest.param("${GIVEN:-8080}", "1", id="given"),
        pytest.param("${EMPTY:-8080}", "8080", id="empty is not given"),
        pytest.param("${MISSING:-}", "", id="empty default"),
        pytest.param("cost: $$5", "cost: $5", id="escaped"),
    ],
)
def test_variables_are_filled_in_as_docker_does(text: str, expected: str) -> None:
    assert interpolate({"key": [text]}, {"GIVEN": "1", "EMPTY": ""}) == {"key": [expected]}


@pytest.mark.parametrize(
    ("duration", "expected"), [("10s", 10.0), ("1m30s", 90.0), ("500ms", 0.5), ("620s", 620.0), ("1h", 3600.0)]
)
def test_durations(duration: str, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        pytest.param(["CMD", "redis-cli", "ping"], ("redis-cli", "ping"), id="list"),
        pytest.param(["CMD-SHELL", "a && b"], ("sh", "-c", "a && b"), id="shell"),
        pytest.param("a && b", ("sh", "-c", "a && b"), id="string"),
    ],
)
def test_health_checks(test: str | list[str], expected: tuple[str, ...]) -> None:
    assert health_command(test) == expected


def test_a_key_that_the_runner_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="privileged"):
        service("web", {"image": "app", "privileged": True})


def test_our_file_has_every_service_with_a_health_check_or_an_end() -> None:
    services = read_services(ROOT / "docker-compose.yml", {})

    always = {"migrate", "web1", "web2", "background", "worker", "beat"}
    always |= {"redis", "redis-state", "postgres", "proxy"}
    assert {name for name, one in services.items() if not one.profiles} == always
    assert {name: one.profiles for name, one in services.items() if one.profiles} == {
        "llama": ("llama",),
        "prometheus": ("metrics",),
        "grafana": ("metrics",),
    }
    assert [name for name, one in services.items() if one.is_job] == ["migrate"]
    assert services["web2"].environment["DATABASE_URL"] == "postgres://responses:responses@postgres:5432/responses"
    assert services["web1"].stop_grace_seconds > 600


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        pytest.param("postgres://a:b@postgres:5432/c", "postgres://a:b@127.0.0.1:41/c", id="another service"),
        pytest.param("redis://redis-state:6379/0", "redis://127.0.0.1:43/0", id="the longer of two names"),
        pytest.param("redis://redis:6379/0", "redis://127.0.0.1:42/0", id="the shorter of two names"),
        pytest.param("http://127.0.0.1:8000/healthz", "http://127.0.0.1:44/healthz", id="itself"),
        pytest.param("8000", "44", id="its own port"),
        pytest.param("0.0.0.0", "127.0.0.1", id="all addresses"),
        pytest.param("/tmp/file", "/home/web/file", id="scratch"),
        pytest.param("18000", "18000", id="another number"),
    ],
)
def test_addresses_inside_the_network_become_ours(inside: str, outside: str) -> None:
    names = {("postgres", 5432): 41, ("redis", 6379): 42, ("redis-state", 6379): 43, ("web", 8000): 44}

    assert Place(home=Path("/home/web"), ports={8000: 44}, names=names).localise(inside) == outside
