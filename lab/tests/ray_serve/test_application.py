"""The application of Ray Serve: its replicas in this process, its configuration, and a cluster."""

import json
import logging.config
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from starlette.testclient import TestClient
from starlette.types import ASGIApp

pytest.importorskip("ray.serve")

from ray.serve.schema import ServeDeploySchema

from eulerlora_contract.settings import validated
from eulerlora_lab.benchmarks.service.images import synthetic_images
from eulerlora_lab.benchmarks.service.load import MeasuredLoad, closed_loop, post
from eulerlora_lab.benchmarks.service.server import eulerlora_server, server_process, tree
from eulerlora_lab.ray_serve import application
from service.settings import ServiceSettings
from tests.checkpoint_files import ADAPTERS_FILE
from tests.eulerlora_client.runs import random_png

RAY_PORT = 8123
ENVIRONMENT = {
    "RAY_ADDRESS": "local",  # not the cluster of another program
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "eulerlora_lab.ray_serve.retry.middlewares",
}
CLUSTER = {
    "http_options": {"host": "127.0.0.1", "port": RAY_PORT},
    "applications": [
        {
            "name": "eulerlora",
            "import_path": "eulerlora_lab.ray_serve.application:build",
            "args": {"open_to_all": True, "precision": "float32"},
            "deployments": [
                {
                    "name": "eulerlora",
                    "autoscaling_config": {"min_replicas": 2, "max_replicas": 2},
                    "ray_actor_options": {"num_cpus": 1},
                }
            ],
        }
    ],
}
CONFIG = Path(application.__file__).with_name("serve.yaml")


@pytest.fixture
def replica_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], ASGIApp]:
    """Makes in this process the application of a replica with a checkpoint."""
    makers: list[Callable[[], ASGIApp]] = []
    ingress = application.serve.ingress
    monkeypatch.setattr(
        application.serve, "ingress", lambda make: makers.append(make) or ingress(make)
    )
    monkeypatch.setattr(logging.config, "dictConfig", lambda _: None)

    def replica(checkpoint: Path) -> ASGIApp:
        application.build(application.Arguments(checkpoints=(str(checkpoint),), open_to_all=True))
        return makers[-1]()

    return replica


def test_a_replica_answers_as_the_service_while_its_lifespan_runs(
    checkpoint_folder: Path, replica_of: Callable[[Path], ASGIApp]
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    replica = replica_of(checkpoint_folder)
    assert signal.getsignal(signal.SIGHUP) is before
    with TestClient(replica, base_url="http://localhost") as client:  # not in the main thread
        assert client.get("/readyz").json() == {"status": "ready"}
        answer = client.post(
            "/predict", content=random_png(), headers={"Content-Type": "image/png"}
        )
        assert answer.status_code == 200, answer.text


def test_a_replica_with_a_broken_checkpoint_does_not_start(
    checkpoint_copy: Path, replica_of: Callable[[Path], ASGIApp]
) -> None:
    (checkpoint_copy / ADAPTERS_FILE).write_bytes(b"broken")
    replica = replica_of(checkpoint_copy)
    with pytest.raises(RuntimeError, match=ADAPTERS_FILE), TestClient(replica):
        pass


def test_the_configuration_is_valid_and_names_the_application() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    (stated,) = ServeDeploySchema.model_validate(config).applications
    assert stated.import_path == f"{application.__name__}:{application.build.__name__}"
    arguments = validated(application.Arguments, stated.args)
    assert arguments.keys is not None
    settings = ServiceSettings()
    (deployment,) = stated.deployments
    built = application.build(arguments)._bound_deployment  # the public API has no way to read it
    assert deployment.name == built.name
    assert settings.connections.max_connections < built.max_ongoing_requests
    longest_s = settings.bodies.upload_timeout_s + settings.deadline_s
    assert config["http_options"]["request_timeout_s"] > longest_s
    assert built._deployment_config.graceful_shutdown_timeout_s == settings.life.grace_s


@pytest.mark.slow
def test_replicas_answer_as_one_process_and_the_loss_of_one_loses_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [post(image, parameters={"mode": "stoch"}) for image in synthetic_images(8)]
    with eulerlora_server(("--precision", "float32")) as server:
        expected = probabilities_by_seed(closed_loop(server.port, requests, 2, 16))
    assert len(expected) == len(requests)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "serve.yaml"
    file.write_text(json.dumps(CLUSTER))  # JSON is YAML
    command = ["-m", "ray.serve.scripts", "run", str(file)]
    with server_process(command, RAY_PORT, "/readyz") as server:
        while len(replicas := replicas_of(server.pid)) < 2:
            time.sleep(0.5)
        load = closed_loop(server.port, requests, 2, 16)
        assert probabilities_by_seed(load) == {
            seed: pytest.approx(probabilities, abs=1e-4) for seed, probabilities in expected.items()
        }
        replicas[0].kill()
        load = closed_loop(server.port, requests, clients=4, responses=40)
        assert [exchange.status for exchange in load.exchanges] == [200] * len(load.exchanges)
        for seed, probabilities in probabilities_by_seed(load).items():
            assert probabilities == pytest.approx(expected[seed], abs=1e-4)
        assert replicas[1].is_running()


def replicas_of(pid: int) -> list[psutil.Process]:
    """Some kernels cut the names of processes after 15 characters."""
    return [process for process in tree(pid) if process.name().startswith("ray::ServeRep")]


def probabilities_by_seed(load: MeasuredLoad) -> dict[int, dict[str, float]]:
    """The seed of an answer is derived from the image."""
    answers = [json.loads(e.response.body) for e in load.successful if e.response is not None]
    return {answer["seed"]: answer["probabilities"] for answer in answers}
