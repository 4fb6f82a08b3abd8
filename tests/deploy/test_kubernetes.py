"""deploy/kubernetes: schemas, labels and the privileges of the pod."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.manifests import rendered, without_digest
from tests.markdown import code_blocks

OLDEST = "1.30"  # the first release with the sleep action of preStop
LABELS = {"app.kubernetes.io/name": "eulerlora"}
DIGEST = "0123456789abcdef" * 4
OPERATOR_KIND = "ServiceMonitor"  # defined by the Prometheus operator


def test_every_manifest_is_valid_in_its_schema(manifests: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for kind, manifest in manifests.items():
        if kind != OPERATOR_KIND:
            kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("overlay", ["base", "cpu"])
def test_kubectl_builds_the_overlay(deploy_folder: Path, overlay: str) -> None:
    command = ["kubectl", "kustomize", str(deploy_folder / "kubernetes" / overlay)]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(built)}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (overlay == "base")
    assert ("--device=cpu" in container["command"]) == (overlay == "cpu")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("overlay", ["base", "cpu", "keda", "kserve"])
def test_the_documented_overlay_serves_a_checkpoint_of_a_volume(
    deploy_folder: Path, tmp_path: Path, overlay: str
) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    document = (deploy_folder.parent / "docs" / "how-to" / "deploy.md").read_text()
    section = document.partition("\n## Kubernetes\n")[2]
    block = next(block for block in code_blocks(section) if block.language == "yaml")
    text = block.code.replace("DIGEST", DIGEST).replace("kubernetes/base", f"kubernetes/{overlay}")
    shutil.copytree(deploy_folder / "kubernetes", tmp_path / "deploy" / "kubernetes")
    query = tmp_path / "deploy" / "kubernetes" / "queue-wait" / "scaled-object.yaml"
    query.write_text(query.read_text().replace("REQUIRED", "clinic"))
    if overlay == "kserve":
        text = text.replace("kind: Deployment", "kind: InferenceService")
        text = text.replace("/spec/template/spec", "/spec/predictor")
    (tmp_path / "my-overlay").mkdir()
    (tmp_path / "my-overlay" / "kustomization.yaml").write_text(text)

    objects = {one["kind"]: one for one in yaml.safe_load_all(rendered(f"{tmp_path}/my-overlay"))}
    if overlay == "kserve":
        pod = objects["InferenceService"]["spec"]["predictor"]
    else:
        deployment = objects["Deployment"]
        kubernetes_validate.validate(deployment, OLDEST, strict=True)
        pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"REGISTRY/eulerlora@sha256:{DIGEST}"
    assert container["command"][-1] == "clinic=/checkpoints/1"
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == "/checkpoints"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
    assert mount["readOnly"] and volume["persistentVolumeClaim"]["readOnly"]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        (f"host:5000/a/eulerlora@sha256:{DIGEST}", True),
        (f"eulerlora:1.0@sha256:{DIGEST}", True),
        ("eulerlora", False),
        ("eulerlora:latest", False),
        (f"eulerlora@sha256:{DIGEST[:-1]}", False),
        (f"eulerlora@sha256:{DIGEST.upper()}", False),
        ("", False),
    ],
)
def test_only_a_whole_digest_names_an_image(image: str, named: bool) -> None:
    for line in (f"        image: {image}", f'      - image: "{image}"'):
        assert without_digest(f"spec:\n{line}\n") == ([] if named else [image])


def test_every_object_selects_the_same_pods(manifests: dict[str, Any]) -> None:
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
    writable = [mount for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert [mount["mountPath"] for mount in writable] == ["/tmp"]
    (tmp,) = [volume for volume in pod["volumes"] if volume["name"] == writable[0]["name"]]
    assert "emptyDir" in tmp


def test_no_service_link_sets_a_variable_with_the_prefix_of_the_settings(
    pod: dict[str, Any], manifests: dict[str, Any]
) -> None:
    assert manifests["Service"]["metadata"]["name"].upper() == "EULERLORA"
    assert pod["enableServiceLinks"] is False


def test_the_autoscaler_reads_the_metric_of_the_rule(
    manifests: dict[str, Any], deploy_folder: Path
) -> None:
    (rule,) = yaml.safe_load((deploy_folder / "kubernetes" / "queue-wait-rule.yaml").read_text())[
        "rules"
    ]
    (metric,) = manifests["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith("eulerlora_queue_wait_seconds_bucket{")


def test_the_autoscaler_retains_more_replicas_than_the_budget_may_remove(
    manifests: dict[str, Any],
) -> None:
    autoscaler = manifests["HorizontalPodAutoscaler"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    assert "replicas" not in manifests["Deployment"]["spec"]
    budget = manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert autoscaler["minReplicas"] > budget
