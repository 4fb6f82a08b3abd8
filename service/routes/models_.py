"""`GET /models` and `GET /models/{name}`."""

from fastapi import APIRouter

from eulerlora_client.contract.fields import MAX_SAMPLES
from eulerlora_client.contract.models import (
    ClassName,
    ImageLimits,
    ModelDetails,
    ModelList,
    ModelSummary,
    Threshold,
)
from service.http.problem_responses import described
from service.inference.models import ServedModels
from service.settings import ServiceSettings


def model_routes(models: ServedModels, settings: ServiceSettings) -> APIRouter:
    """The routes that tell what is served."""
    router = APIRouter()

    @router.get("/models", responses=described(401, 429))
    async def list_models() -> ModelList:
        """The served models; the default first."""
        return ModelList(
            models=tuple(
                ModelSummary(
                    name=name,
                    revision=served.model.revision,
                    classes=tuple(served.model.classes),
                    default=name == models.default,
                )
                for name, served in models.items()
            )
        )

    @router.get("/models/{name}", responses=described(401, 404, 429))
    async def describe_model(name: str) -> ModelDetails:
        """A model's classes, limits, thresholds and provenance."""
        model = models.named(name).model
        return ModelDetails(
            name=model.config.name,
            revision=model.revision,
            classes=tuple(
                ClassName(name=each.name, description=each.description)
                for each in model.config.classes
            ),
            adapters=model.config.adapters.settings.adapters,
            input_size=model.config.preprocessing.size,
            image_limits=ImageLimits(**settings.images.model_dump()),
            max_body_bytes=settings.bodies.max_bytes,
            max_samples=MAX_SAMPLES,
            thresholds=tuple(Threshold(**each.model_dump()) for each in model.config.thresholds),
            provenance=model.config.provenance,
        )

    return router
