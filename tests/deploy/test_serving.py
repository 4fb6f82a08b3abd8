"""Compose, Kubernetes and the Dockerfile agree with the server and with each other."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.process import effective_settings
from tests.deploy.conftest import Objects
from tests.program import succeed
from tests.service.conftest import app_of

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text()
PORT = 8000
RESERVE_S = 5
GRACE = "EULERLORA_SERVE_LIFE__GRACE_S"


@pytest.fixture
def image_command() -> list[str]:
    command = re.search(r"^CMD \[(.*)\]$", DOCKERFILE, re.MULTILINE)
    assert command
    return re.findall(r'"([^"]*)"', command[1])


@pytest.fixture
def commands(
    compose: dict[str, Any], container: dict[str, Any], image_command: list[str]
) -> list[list[str]]:
    return [compose["command"], container["command"], image_command]


@pytest.fixture
def environments(compose: dict[str, Any], container: dict[str, Any]) -> list[dict[str, str]]:
    return [compose["environment"], {entry["name"]: entry["value"] for entry in container["env"]}]


def option(command: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in command if word.startswith(f"--{name}="))


def test_every_option_is_one_of_the_server(commands: list[list[str]]) -> None:
    known = set(re.findall(r"--[a-z-]+", succeed("serve", "--help").out))  # also of extensions
    for command in commands:
        assert command[:2] == ["eulerlora", "serve"]
        assert {word.partition("=")[0] for word in command if word.startswith("--")} <= known


def test_every_probed_path_is_a_route(
    container: dict[str, Any], rendered: Callable[..., Objects]
) -> None:
    paths = {container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness")}
    paths |= {container["livenessProbe"]["httpGet"]["path"]}
    endpoints = rendered("monitor=true")["PodMonitor"]["spec"]["podMetricsEndpoints"]
    paths |= {endpoint["path"] for endpoint in endpoints}
    paths |= set(re.findall(r"'GET', '(/\w+)'", DOCKERFILE))
    assert paths == {"/readyz", "/livez", "/metrics"}
    assert paths <= set(app_of().openapi()["paths"])


def test_liveness_and_readiness_have_separate_probes(
    container: dict[str, Any],
) -> None:
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_the_ports_agree(
    compose: dict[str, Any], container: dict[str, Any], manifests: dict[str, Any],
    image_command: list[str],
) -> None:  # fmt: skip
    assert f"EXPOSE {PORT}\n" in DOCKERFILE
    assert f"HTTPConnection('127.0.0.1', {PORT}," in DOCKERFILE
    assert image_command[image_command.index("--port") + 1] == str(PORT)
    assert option(compose["command"], "port") == option(container["command"], "port") == str(PORT)
    assert compose["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    ((name, number),) = [(port["name"], port["containerPort"]) for port in container["ports"]]
    assert number == PORT
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {container[probe]["httpGet"]["port"] for probe in probes} == {name}
    assert [port["targetPort"] for port in manifests["Service"]["spec"]["ports"]] == [name]
    rules = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [name]


def test_the_settings_of_every_deployment_can_work_together(
    commands: list[list[str]], environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, environment in zip(commands[:2], environments, strict=True):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings = effective_settings(float(option(command, "drain-s")))
        assert settings.life.drain_s > 0


def test_the_grace_period_of_compose_is_longer_than_that_of_the_server(
    compose: dict[str, Any], environments: list[dict[str, str]]
) -> None:
    grace_s = float(compose["stop_grace_period"].removesuffix("s"))
    assert grace_s >= float(environments[0][GRACE]) + RESERVE_S


def test_the_grace_period_of_kubernetes_is_longer_than_that_of_the_server(
    pod: dict[str, Any], container: dict[str, Any], environments: list[dict[str, str]]
) -> None:
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed_s = before_s + float(environments[1][GRACE]) + RESERVE_S
    assert pod["terminationGracePeriodSeconds"] >= needed_s


def test_the_chart_stops_late_enough_for_another_deadline(
    rendered: Callable[..., Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = ("--set-string", "settings.EULERLORA_SERVE_DEADLINE_S=62.5")
    pod = rendered(options=deadline)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    settings = effective_settings(float(option(container["command"], "drain-s")))
    assert settings.deadline_s == 62.5
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed_s = before_s + settings.life.grace_s + RESERVE_S
    assert pod["terminationGracePeriodSeconds"] >= needed_s


def test_a_published_server_requires_keys(commands: list[list[str]]) -> None:
    for command in commands[:2]:
        assert option(command, "host") == "0.0.0.0"
        assert option(command, "keys")


def test_the_user_id_is_the_same_everywhere(pod: dict[str, Any]) -> None:
    declared = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert declared
    user, group = int(declared[1]), int(declared[2])
    assert user > 0
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (user, group)
    assert security["fsGroup"] == group
    assert f"--owner={user} --group={group}" in DOCKERFILE
