"""deploy/kubernetes/keda and kserve: fields of their definitions, and the same pod and metric."""

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from deploy.manifests import ManifestError, rendered
from tests.deploy.custom_resources import DEFINITIONS
from tests.deploy.test_kubernetes import DIGEST, OLDEST

PREDICTOR = "eulerlora-predictor"  # the Deployment that KServe creates
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")


@pytest.fixture(scope="module")
def resources(deploy_folder: Path) -> dict[str, dict[str, Any]]:
    folder = deploy_folder / "kubernetes"
    files = (
        "queue-wait/scaled-object.yaml",
        "kserve/inference-service.yaml",
        "kserve/pod-monitor.yaml",
    )
    objects = [yaml.safe_load((folder / file).read_text()) for file in files]
    return {resource["kind"]: resource for resource in objects}


@pytest.fixture(scope="module")
def predictor(resources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The pod of the InferenceService."""
    spec = dict(resources["InferenceService"]["spec"]["predictor"])
    return {name: value for name, value in spec.items() if not name.endswith("Replicas")}


def built(folder: Path) -> dict[str, dict[str, Any]]:
    command = ["kubectl", "kustomize", str(folder)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {resource["kind"]: resource for resource in yaml.safe_load_all(text)}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_a_resource_has_only_fields_of_its_definition(resources, kind) -> None:
    DEFINITIONS[kind].model_validate(resources[kind])
    wrong = copy.deepcopy(resources[kind])
    wrong["spec"]["replica"] = 1
    with pytest.raises(ValidationError, match="replica"):
        DEFINITIONS[kind].model_validate(wrong)


def test_the_job_of_kserve_is_that_of_the_alerts(resources, deploy_folder) -> None:
    (endpoint,) = resources["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "eulerlora"}]
    assert 'up{job="eulerlora"}' in (deploy_folder / "prometheus-rules.yaml").read_text()


def test_the_pod_of_kserve_is_that_of_the_deployment(predictor, pod) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": predictor}
    kubernetes_validate.validate(manifest, OLDEST, strict=True)
    expected = copy.deepcopy(pod)
    (container,) = expected["containers"]
    container["name"] = "kserve-container"  # the name that KServe looks for
    paths = {"/readyz": "/v2/health/ready", "/livez": "/v2/health/live"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        container[probe]["httpGet"]["path"] = paths[container[probe]["httpGet"]["path"]]
    assert predictor == expected


def test_keda_scales_as_the_autoscaler_does(resources, manifests) -> None:
    scaler = manifests["HorizontalPodAutoscaler"]["spec"]
    scaled = resources["ScaledObject"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        scaler["minReplicas"],
        scaler["maxReplicas"],
    )
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    (trigger,) = scaled["triggers"]
    (metric,) = scaler["metrics"]
    assert metric["pods"]["target"]["averageValue"] == "100m"
    assert trigger["metadata"]["threshold"] == "0.1"
    assert trigger["metricType"] == "Value"
    predictor = resources["InferenceService"]["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (
        scaled["minReplicaCount"],
        scaled["maxReplicaCount"],
    )


def test_the_query_reads_the_metric_of_the_rule(resources, deploy_folder) -> None:
    (rule,) = yaml.safe_load((deploy_folder / "kubernetes" / "queue-wait-rule.yaml").read_text())[
        "rules"
    ]
    (trigger,) = resources["ScaledObject"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    series = rule["seriesQuery"].partition("{")[0]
    assert series in query
    (window,) = re.findall(r"\[(\w+)\]", rule["metricsQuery"])
    assert f"[{window}]" in query
    assert query.count("(") == query.count(")")
    assert re.findall(r"quantile\(([\d.]+)", query) == re.findall(
        r"quantile\(([\d.]+)", rule["metricsQuery"]
    )


@needs_kubectl
def test_the_overlays_replace_the_autoscaler(deploy_folder: Path) -> None:
    keda = built(deploy_folder / "kubernetes" / "keda")
    kserve = built(deploy_folder / "kubernetes" / "kserve")
    assert "HorizontalPodAutoscaler" not in {**keda, **kserve}
    assert set(kserve) == set(DEFINITIONS)
    assert keda["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == "eulerlora"
    assert keda["Deployment"]["metadata"]["name"] == "eulerlora"
    target = kserve["ScaledObject"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", PREDICTOR)
    assert kserve["InferenceService"]["metadata"]["name"] + "-predictor" == PREDICTOR
    external = kserve["InferenceService"]["metadata"]["annotations"]
    assert external["serving.kserve.io/autoscalerClass"] == "external"


@needs_kubectl
@pytest.mark.parametrize("overlay", ["base", "cpu", "keda", "kserve"])
def test_manifests_are_refused_until_image_and_namespace_are_set(
    deploy_folder: Path, tmp_path: Path, overlay: str
) -> None:
    copied = tmp_path / "kubernetes"
    shutil.copytree(deploy_folder / "kubernetes", copied)

    def fill(file: Path, value: str) -> None:
        file.write_text(file.read_text().replace("REQUIRED", value))

    with pytest.raises(ManifestError, match="expected an image by digest"):
        rendered(str(copied / overlay))
    for folder in ("base", "kserve"):
        fill(copied / folder / "kustomization.yaml", DIGEST)
    if overlay in ("keda", "kserve"):
        with pytest.raises(ManifestError, match="expected the namespace in the query"):
            rendered(str(copied / overlay))
    fill(copied / "queue-wait" / "scaled-object.yaml", "clinic")
    assert f"image: eulerlora@sha256:{DIGEST}\n" in rendered(str(copied / overlay))
