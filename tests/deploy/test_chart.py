"""deploy/chart: schemas, refused values, labels, and the privileges of the pod."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from eulerlora import __version__
from tests.deploy.conftest import CHART, DEPLOY, IMAGE, Objects
from tests.deploy.custom_resources import DEFINITIONS
from tests.service.conftest import app_of

OLDEST = "1.30"  # kubeVersion of the chart
LABELS = {"app.kubernetes.io/name": "eulerlora", "app.kubernetes.io/instance": "eulerlora"}
CLINIC = DEPLOY / "clinic-values.yaml"
VALUES = {
    "default": (),
    "gpu": ("gpu=true", "monitor=true", "autoscaling.by=adapter"),
    "keda": ("autoscaling.by=keda", "checkpoints={a=/checkpoints/1}", "checkpointsClaim=c"),
    "kserve": (
        "kserve.enabled=true", "kserve.storageUri=pvc://c/1", "autoscaling.by=keda", "monitor=true",
    ),
    "audit": ("audit.size=20G", "replicas=1"),
}  # fmt: skip
Render = Callable[..., Objects]


@pytest.fixture(scope="module")
def clinic(rendered: Render, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """The objects of the documented example, with an image."""
    values = tmp_path_factory.mktemp("clinic") / "values.yaml"
    values.write_text(CLINIC.read_text().replace("DIGEST", IMAGE.partition("sha256:")[2]))
    return rendered(options=("--values", str(values)))


def validate(objects: Objects) -> None:
    for kind, manifest in objects.items():
        if kind in DEFINITIONS:
            DEFINITIONS[kind].model_validate(manifest)
        else:
            kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_valid_in_its_schema(name: str, rendered: Render) -> None:
    objects = rendered(*VALUES[name])
    validate(objects)
    if name == "kserve":
        assert set(objects) == set(DEFINITIONS)
        spec = dict(objects["InferenceService"]["spec"]["predictor"])
        for of_kserve in ("labels", "minReplicas", "maxReplicas"):
            del spec[of_kserve]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        kubernetes_validate.validate(pod, OLDEST, strict=True)


def test_the_example_of_a_clinic_is_valid(clinic: Objects) -> None:
    validate(clinic)
    assert {"Ingress", "PersistentVolumeClaim", "PodMonitor"} < set(clinic)


def test_the_chart_has_no_warnings_and_the_version_of_the_project(helm: Callable[..., Any]) -> None:
    done = helm("lint --strict", f"image={IMAGE}")
    assert done.returncode == 0, done.stdout
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["version"] == __version__


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("image=eulerlora:1.0",), "/image"),
        (("image=",), "/image"),
        ((f"image={IMAGE[:-1]}",), "/image"),
        (("replica=3",), "replica"),
        (("settings.deadline=3",), "deadline"),
        (("checkpoints={/checkpoints/1}",), "/checkpointsClaim"),
        (("audit.size=1Gb",), "/audit/size"),
        (("audit.size=1Gi", "autoscaling.by=keda"), "(audit.size)"),
        (("audit.size=1Gi", "replicas=3"), "(audit.size)"),
        (("audit.size=1Gi", "kserve.enabled=true"), "(audit.size)"),
        (("kserve.enabled=true", "ingress.host=a.example"), "(kserve.enabled)"),
        (("kserve.storageUri=pvc://c/1",), "/kserve/enabled"),
    ],
)
def test_values_that_cannot_work_are_refused(
    helm: Callable[..., Any], settings: tuple[str, ...], key: str
) -> None:
    done = helm("template eulerlora", f"image={IMAGE}", *settings)
    assert done.returncode != 0
    assert key in done.stderr


def test_every_object_selects_the_same_pods(manifests: Objects) -> None:
    deployment = manifests["Deployment"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == LABELS
    assert deployment["selector"] == {"matchLabels": LABELS}
    assert manifests["Service"]["spec"]["selector"] == LABELS
    assert manifests["PodDisruptionBudget"]["spec"]["selector"] == {"matchLabels": LABELS}
    assert manifests["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": LABELS}


def writable(container: dict[str, Any]) -> list[str]:
    return [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")]


def test_the_pod_has_no_privileges_and_writes_only_to_tmp(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert writable(container) == ["/tmp"]
    assert "emptyDir" in next(one for one in pod["volumes"] if one["name"] == "tmp")


def test_no_service_link_sets_a_variable_with_the_prefix_of_the_settings(
    pod: dict[str, Any], manifests: Objects
) -> None:
    assert manifests["Service"]["metadata"]["name"].upper() == "EULERLORA"
    assert pod["enableServiceLinks"] is False


def test_hosts_and_proxies_of_the_ingress_are_added_to_those_of_the_settings(
    rendered: Render,
) -> None:
    hosts, proxies = "EULERLORA_SERVE_ALLOWED_HOSTS", "EULERLORA_SERVE_TRUSTED_PROXIES"
    services = ",eulerlora,eulerlora.clinic,eulerlora.clinic.svc,eulerlora.clinic.svc.cluster.local"
    for settings, expected in (
        ((), [(hosts, f"a.example{services}"), (proxies, "10.0.0.0/8")]),
        (
            (f"settings.{hosts}=b.example", f"settings.{proxies}=::1"),
            [(hosts, f"a.example{services},b.example"), (proxies, "10.0.0.0/8,::1")],
        ),
    ):
        objects = rendered("ingress.host=a.example", "ingress.proxies=10.0.0.0/8", *settings)
        (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
        variables = [(one["name"], one["value"]) for one in container["env"]]
        assert [one for one in variables if one[0] in (hosts, proxies)] == expected


def test_an_audit_log_has_a_volume_and_one_pod(clinic: Objects) -> None:
    deployment = clinic["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert clinic["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    (folder,) = set(writable(container)) - {"/tmp"}
    assert f"--audit={folder}/audit.jsonl" in container["command"]
    (claim,) = [one["persistentVolumeClaim"] for one in pod["volumes"] if one["name"] == "audit"]
    assert claim == {"claimName": clinic["PersistentVolumeClaim"]["metadata"]["name"]}


def test_the_secret_has_the_items_that_the_document_names(clinic: Objects) -> None:
    pod = clinic["Deployment"]["spec"]["template"]["spec"]
    (secret,) = [one["secret"] for one in pod["volumes"] if "secret" in one]
    document = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
    command = f"create secret generic {secret['secretName']} "
    words = document.partition(command)[2].partition(" \\\n")[0].split()
    assert [f"--from-file={item['key']}" for item in secret["items"]] == words
    command = pod["containers"][0]["command"]
    for option, item in zip(("keys", "audit-secret"), secret["items"], strict=True):
        assert f"--{option}=/etc/eulerlora/{item['path']}" in command


def test_the_ingress_admits_every_route_but_the_metrics(manifests: Objects) -> None:
    (rule,) = manifests["Ingress"]["spec"]["rules"]
    paths = {one["path"]: one["pathType"] for one in rule["http"]["paths"]}
    assert paths.pop("/") == "Exact"
    routes = {f"/{path.split('/')[1]}" for path in app_of().openapi()["paths"]} - {"/"}
    assert set(paths) - routes == {"/docs", "/openapi.json", "/page", "/v2"}
    assert routes - set(paths) == {"/metrics"}
    assert set(paths.values()) == {"Prefix"}
    (tls,) = manifests["Ingress"]["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]


def test_the_pod_of_kserve_is_that_of_the_deployment_with_its_folder(
    rendered: Render, pod: dict[str, Any]
) -> None:
    objects = rendered("kserve.enabled=true", "kserve.storageUri=pvc://c/1")
    service = objects["InferenceService"]
    predictor = service["spec"]["predictor"]
    (container,), (expected,) = predictor["containers"], pod["containers"]
    assert container["name"] == "kserve-container"  # the name that KServe looks for
    served = f"{service['metadata']['name']}=/mnt/models"  # clients name the InferenceService
    assert set(container["command"]) - set(expected["command"]) == {served}
    assert {"name": "STORAGE_URI", "value": "pvc://c/1"} in container["env"]
    for name in ("securityContext", "volumes", "terminationGracePeriodSeconds"):
        assert predictor[name] == pod[name]
    for name in ("securityContext", "resources", "volumeMounts", "ports", "lifecycle"):
        assert container[name] == expected[name]


@pytest.mark.parametrize("kserve", [False, True])
def test_keda_scales_as_the_adapter_does(kserve: bool, rendered: Render) -> None:
    setting = f"kserve.enabled={str(kserve).lower()}"
    adapter = rendered(setting, "autoscaling.by=adapter")["HorizontalPodAutoscaler"]["spec"]
    scaled = rendered(setting, "autoscaling.by=keda")["ScaledObject"]["spec"]
    target = "eulerlora-predictor" if kserve else "eulerlora"
    assert adapter["scaleTargetRef"] == scaled["scaleTargetRef"]
    assert adapter["scaleTargetRef"]["name"] == target
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        adapter["minReplicas"], adapter["maxReplicas"],
    )  # fmt: skip
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == adapter["behavior"]


def test_both_autoscalers_read_the_queue_wait_of_all_routes(
    rendered: Render, deploy_folder: Path
) -> None:
    (rule,) = yaml.safe_load((deploy_folder / "queue-wait-rule.yaml").read_text())["rules"]
    (metric,) = rendered("autoscaling.by=adapter")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert metric["pods"]["target"]["averageValue"] == "100m"
    (trigger,) = rendered("autoscaling.by=keda")["ScaledObject"]["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "0.1")
    query = trigger["metadata"]["query"]
    assert 'namespace="clinic"' in query
    assert rule["seriesQuery"].partition("{")[0] in query
    for pattern in (r"\[(\w+)\]", r"quantile\(([\d.]+)", r"by \((le)"):
        assert re.findall(pattern, query) == re.findall(pattern, rule["metricsQuery"]) != []


def test_the_job_is_that_of_the_alerts(rendered: Render, deploy_folder: Path) -> None:
    (endpoint,) = rendered("monitor=true")["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "eulerlora"}]
    assert 'up{job="eulerlora"}' in (deploy_folder / "prometheus-rules.yaml").read_text()


def test_more_replicas_remain_than_the_budget_may_remove(manifests: Objects) -> None:
    budget = manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert manifests["Deployment"]["spec"]["replicas"] > budget
