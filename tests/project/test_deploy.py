"""The files below deploy/ fit each other, docker-compose.yml and what the web servers tell."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from responses_ws.runtime.metrics import Family
from responses_ws.transports import monitoring
from tests.stack.composefile import read_services

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "responses_ws.json").read_text())
# The database's part is told beside these, once for all workers.
OF_DATABASE = {
    "responses_ws_unbilled_records",
    "responses_ws_unbilled_oldest_seconds",
    "responses_ws_beat_silent_seconds",
    "responses_ws_background_waiting",
    "responses_ws_background_waiting_oldest_seconds",
}
_NAME = re.compile(r"\b(?:responses_ws|gen_ai|process)_\w+")
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|ignoring) ?\([^)]*\)")


def exported() -> set[str]:
    """Every name that a scrape may hold."""
    names = set(OF_DATABASE)
    for family in msgspec.json.decode(monitoring.told(), type=list[Family]):
        is_histogram = family.kind == "histogram"
        names |= {family.name + end for end in ("_bucket", "_sum", "_count")} if is_histogram else {family.name}
    return names


def asked_in(expression: str) -> set[str]:
    return set(_NAME.findall(_LABELS.sub(" ", expression)))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_we_tell(panel: dict[str, Any]) -> None:
    asked = [asked_in(target["expr"]) for target in panel["targets"]]

    assert all(asked)
    assert set().union(*asked) <= exported()
    assert panel["datasource"]["uid"] == "prometheus"


def test_all_that_we_tell_is_on_the_dashboard() -> None:
    shown = set().union(*(asked_in(target["expr"]) for panel in panels() for target in panel["targets"]))

    untold = {name for name in exported() - shown if not name.endswith(("_sum", "_count"))}
    assert not untold


def test_panels_have_ids_and_places_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(ids)) == len(ids)
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_we_tell_and_is_explained(rule: dict[str, Any]) -> None:
    asked = asked_in(rule["expr"])

    assert asked and asked <= exported()
    assert f"| `{rule['alert']}` |" in (ROOT / "docs" / "howto" / "watch.md").read_text()


def test_prometheus_itself_takes_its_files(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "token").write_text("a-token")

    result = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)

    assert result.returncode == 0, result.stdout + result.stderr


def test_every_file_that_a_container_is_given_is_there() -> None:
    services = read_services(ROOT / "docker-compose.yml", {})
    mounted = [source for one in services.values() for source, _ in one.volumes if source.startswith("./")]

    assert len(mounted) >= 6
    assert [source for source in mounted if not (ROOT / source).is_file()] == []


def test_prometheus_knows_every_process_that_runs_turns() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    services = read_services(ROOT / "docker-compose.yml", {})

    running = {"responses_ws_serve", "responses_ws_background"}
    serving = {f"{name}:8000" for name, one in services.items() if running & set(one.command)}
    assert set(job["static_configs"][0]["targets"]) == serving
    # Django answers 400 to whoever calls it by another name.
    allowed = services["web1"].environment["ALLOWED_HOSTS"].split(",")
    assert {name for name, one in services.items() if "responses_ws_serve" in one.command} <= set(allowed)


def test_a_web_server_has_ten_seconds_more_than_its_drain_and_the_proxy_has_more_than_that() -> None:
    services = read_services(ROOT / "docker-compose.yml", {})

    command = services["web1"].command
    drain = float(command[command.index("--drain-seconds") + 1])
    assert services["web1"].stop_grace_seconds == drain + 10
    assert services["proxy"].stop_grace_seconds > services["web1"].stop_grace_seconds


def test_images_are_pinned() -> None:
    services = read_services(ROOT / "docker-compose.yml", {})

    images = {one.image for one in services.values()} - {"responses-ws-demo"}
    assert all(re.search(r":[\w.-]*\d[\w.-]*$", image) for image in images), images
