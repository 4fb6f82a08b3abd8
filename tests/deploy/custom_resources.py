"""The fields of custom resources that the manifests use; an unknown field is an error.

Names, types and required fields are those of the resource definitions of KServe 0.15
(`serving.kserve.io/v1beta1`), KEDA 2.17 (`keda.sh/v1alpha1`) and the Prometheus operator.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Int32 = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Interval = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
LABEL = "app.kubernetes.io/name"


class Resource(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Resource):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ScaleTarget(Resource):
    apiVersion: str  # noqa: N815 - the name in the definition
    kind: str
    name: str


class PrometheusTrigger(Resource):
    """All metadata of a trigger are text."""

    class Metadata(Resource):
        serverAddress: Annotated[str, Field(pattern="^https?://")]  # noqa: N815
        query: str
        threshold: Annotated[str, Field(pattern=r"^[0-9.]+$", strict=True)]

    type: Literal["prometheus"]
    metricType: Literal["Value", "AverageValue"]  # noqa: N815
    metadata: Metadata


class Advanced(Resource):
    class AutoscalerConfig(Resource):
        behavior: dict[str, Any]  # that of autoscaling/v2

    horizontalPodAutoscalerConfig: AutoscalerConfig  # noqa: N815


class ScaledObject(Resource):
    class Spec(Resource):
        scaleTargetRef: ScaleTarget  # noqa: N815
        minReplicaCount: Int32  # noqa: N815
        maxReplicaCount: Int32  # noqa: N815
        pollingInterval: Int32  # noqa: N815
        triggers: Annotated[list[PrometheusTrigger], Field(min_length=1)]
        advanced: Advanced

    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: Spec


class InferenceService(Resource):
    class Spec(Resource):
        class Predictor(BaseModel):
            """The other fields are those of a pod."""

            model_config = ConfigDict(extra="allow")

            labels: dict[str, str]
            minReplicas: Int32  # noqa: N815
            maxReplicas: Int32  # noqa: N815

        predictor: Predictor

    apiVersion: Literal["serving.kserve.io/v1beta1"]  # noqa: N815
    kind: Literal["InferenceService"]
    metadata: Metadata
    spec: Spec


class PodMonitor(Resource):
    class Spec(Resource):
        class Endpoint(Resource):
            port: str
            path: str
            interval: Interval
            relabelings: list[dict[Literal["targetLabel", "replacement"], str]]

        selector: dict[Literal["matchLabels"], dict[str, str]]
        podMetricsEndpoints: list[Endpoint]  # noqa: N815

    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815
    kind: Literal["PodMonitor"]
    metadata: Metadata
    spec: Spec


DEFINITIONS: dict[str, type[Resource]] = {
    kind.__name__: kind for kind in (ScaledObject, InferenceService, PodMonitor)
}
