"""The manifests are not applied here; they are held against the code that they start."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import get_commands
from django.urls import resolve

from responses_ws.connection.limits import Limits
from tests.project.test_deploy import asked_in, exported

from .pages import DOCS, blocks_of

PAGE = DOCS / "howto" / "kubernetes.md"


def manifests() -> list[dict[str, Any]]:
    texts = [block.text for block in blocks_of(PAGE) if block.language == "yaml"]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def kind(name: str) -> dict[str, dict[str, Any]]:
    """All of a kind, by name."""
    return {one["metadata"]["name"]: one for one in manifests() if one.get("kind") == name}


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, pod, its container) of everything that runs."""
    for name, one in {**kind("Deployment"), **kind("Job")}.items():
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield name, pod, container


def test_every_role_is_there() -> None:
    assert [name for name, *_ in pods()] == ["web", "background", "worker", "beat", "migrate-1-2-3"]


@pytest.mark.parametrize(("name", "pod", "container"), list(pods()), ids=[name for name, *_ in pods()])
def test_a_pod_starts_a_command_that_there_is_and_may_end_in_its_time(
    name: str, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    words = container.get("args") or container["command"]
    assert words[0] in get_commands() or words[0] == "celery"

    if "--drain-seconds" in words:
        drain = float(words[words.index("--drain-seconds") + 1])
        before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= before + drain + 10


def test_probes_ask_what_is_answered() -> None:
    probes = [
        (which, container[which]["httpGet"])
        for _name, _pod, container in pods()
        for which in ("startupProbe", "livenessProbe", "readinessProbe")
        if which in container
    ]

    assert len(probes) == 5
    for which, asked in probes:
        assert resolve(asked["path"]).func.__module__ == "responses_ws.transports.monitoring"
        # Who restarts a process because its database is away makes it worse.
        assert asked["path"] == ("/readyz" if which == "readinessProbe" else "/healthz")


def test_selectors_find_their_pods() -> None:
    labels = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in kind("Deployment").items()}

    for name, one in kind("Deployment").items():
        assert one["spec"]["selector"]["matchLabels"] == labels[name]
    assert kind("Service")["web"]["spec"]["selector"] == labels["web"]
    assert kind("PodDisruptionBudget")["web"]["spec"]["selector"]["matchLabels"] == labels["web"]
    assert kind("HorizontalPodAutoscaler")["web"]["spec"]["scaleTargetRef"]["name"] == "web"


def test_it_scales_by_what_is_told() -> None:
    (metric,) = kind("HorizontalPodAutoscaler")["web"]["spec"]["metrics"]
    (rule,) = next(one["rules"] for one in manifests() if "rules" in one)

    assert {metric["pods"]["metric"]["name"]} == asked_in(rule["metricsQuery"]) <= exported()


def test_the_ingress_has_more_patience_and_room_than_we_have() -> None:
    annotations = kind("Ingress")["web"]["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/proxy-"

    assert float(annotations[prefix + "read-timeout"]) > Limits().connection_seconds
    assert annotations[prefix + "body-size"] == "17m" and Limits().max_frame_bytes == 16 * 1024 * 1024
