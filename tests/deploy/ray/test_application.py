"""The application of Ray Serve: its replicas in this process, its configuration, and a cluster."""

import signal
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

pytest.importorskip("ray.serve")

from ray.serve.schema import ServeDeploySchema

from benchmarks.ray_serve import (
    answer_of,
    answers_of,
    largest_difference,
    ray_serve,
    replicas,
)
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import closed_loop
from benchmarks.service.load.request import post
from benchmarks.service.server.process import eulerlora_server
from deploy.ray.application import MAX_ONGOING_REQUESTS, Arguments, build, create_replica
from eulerlora.checkpoint.files import ADAPTERS
from eulerlora.validation import validated
from service.settings import ServiceSettings
from tests.eulerlora_client.runs import random_png

CONFIG = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"


def test_a_replica_answers_as_the_service_while_its_lifespan_runs(
    checkpoint_folder: Path,
) -> None:
    replica = create_replica(Arguments(checkpoints=(str(checkpoint_folder),), open_to_all=True))
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    with TestClient(replica, base_url="http://localhost") as client:  # not in the main thread
        assert client.get("/readyz").json() == {"status": "ready"}
        answer = client.post(
            "/predict", content=random_png(), headers={"Content-Type": "image/png"}
        )
        assert answer.status_code == 200, answer.text


def test_a_replica_with_a_broken_checkpoint_does_not_start(checkpoint_copy: Path) -> None:
    (checkpoint_copy / ADAPTERS).write_bytes(b"broken")
    replica = create_replica(Arguments(checkpoints=(str(checkpoint_copy),), open_to_all=True))
    with pytest.raises(RuntimeError, match=ADAPTERS), TestClient(replica):
        pass


def test_the_configuration_is_valid_and_names_the_application() -> None:
    config = yaml.safe_load(CONFIG.read_text())
    (application,) = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    arguments = validated(Arguments, application.args)
    assert arguments.keys is not None
    settings = ServiceSettings()
    (deployment,) = application.deployments
    built = build(arguments)._bound_deployment  # the public API has no way to read it
    assert deployment.name == built.name
    assert settings.connections.max_connections < MAX_ONGOING_REQUESTS == built.max_ongoing_requests
    longest_s = settings.bodies.upload_timeout_s + settings.deadline_s
    assert config["http_options"]["request_timeout_s"] > longest_s
    assert built._deployment_config.graceful_shutdown_timeout_s == settings.life.grace_s


@pytest.mark.slow
def test_replicas_answer_as_one_process_and_the_loss_of_one_loses_no_request() -> None:
    requests = [post(image, parameters={"mode": "stoch"}) for image in synthetic_images(8)]
    with eulerlora_server(("--precision", "auto")) as server:
        expected = answers_of(server.port, requests)
    with ray_serve() as server:
        assert largest_difference(expected, answers_of(server.port, requests)) < 1e-4
        first, second = replicas(server)
        first.kill()
        load = closed_loop(server.port, requests, clients=4, responses=40)
        assert [exchange.status for exchange in load.exchanges] == [200] * len(load.exchanges)
        for exchange in load.exchanges:
            answer = answer_of(exchange)
            assert largest_difference(expected[answer["seed"]], answer) < 1e-4
        assert second.is_running()
