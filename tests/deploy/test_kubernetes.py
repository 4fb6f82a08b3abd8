"""deploy/kubernetes: against the schemas, and against what the pod must not be able to do."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

OLDEST = "1.30"  # the first that sleeps before the signal without a program in the image
LABELS = {"app.kubernetes.io/name": "eulerlora"}
FOREIGN = "ServiceMonitor"  # the Prometheus operator's, not Kubernetes' own


def test_every_manifest_fits_its_schema(manifests: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for kind, manifest in manifests.items():
        if kind != FOREIGN:
            kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("overlay", ["base", "cpu"])
def test_the_overlay_can_be_built(deploy_folder: Path, overlay: str) -> None:
    command = ["kubectl", "kustomize", str(deploy_folder / "kubernetes" / overlay)]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = {each["kind"]: each for each in yaml.safe_load_all(built)}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (overlay == "base")
    assert ("--device=cpu" in container["command"]) == (overlay == "cpu")


def test_every_object_means_the_same_pods(manifests: dict[str, Any]) -> None:
    deployment = manifests["Deployment"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == LABELS
    assert deployment["selector"] == {"matchLabels": LABELS}
    assert manifests["Service"]["spec"]["selector"] == LABELS
    assert manifests["Service"]["metadata"]["labels"] == LABELS
    assert manifests["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": LABELS}
    assert manifests["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": LABELS}
    assert manifests["ServiceMonitor"]["spec"]["selector"] == {"matchLabels": LABELS}


def test_the_pod_has_no_privileges_and_writes_only_to_tmp(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [each for each in container["volumeMounts"] if not each.get("readOnly")]
    assert [each["mountPath"] for each in writable] == ["/tmp"]
    (tmp,) = [each for each in pod["volumes"] if each["name"] == writable[0]["name"]]
    assert "emptyDir" in tmp


def test_kubernetes_sets_no_variables_that_look_like_settings(
    pod: dict[str, Any], manifests: dict[str, Any]
) -> None:
    assert manifests["Service"]["metadata"]["name"].upper() == "EULERLORA"
    assert pod["enableServiceLinks"] is False


def test_the_autoscaler_reads_the_metric_that_the_rule_makes(
    manifests: dict[str, Any], deploy_folder: Path
) -> None:
    (rule,) = yaml.safe_load((deploy_folder / "kubernetes" / "queue-wait-rule.yaml").read_text())[
        "rules"
    ]
    (metric,) = manifests["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith("eulerlora_queue_wait_seconds_bucket{")


def test_the_autoscaler_scales_the_deployment_and_leaves_the_budget_room(
    manifests: dict[str, Any],
) -> None:
    autoscaler = manifests["HorizontalPodAutoscaler"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    assert "replicas" not in manifests["Deployment"]["spec"]
    budget = manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert autoscaler["minReplicas"] > budget
