"""Cross-fitting of a policy: predictions of images by checkpoints that were not trained on them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora_clinic.fitting.policy import PolicyInputs
from eulerlora_contract.errors import DataError
from training.data.images import LabelledImage
from training.data.units import Units
from training.recipe.schema import SOURCE


def check_folds(config: CheckpointConfig, folds: Sequence[CheckpointConfig]) -> None:
    """Checks that checkpoints differ from one of `config`, and from each other, in the fold only.

    Raises:
        DataError: For other classes or keys of the recipe, and for a repeated or missing fold.
    """
    seen = set()
    for one in folds:
        if one.class_names != config.class_names:
            raise DataError(
                f"--fold: expected the classes {', '.join(config.class_names)}, got "
                f"{', '.join(one.class_names)}"
            )
        expected, given = dict(_recipe_keys(config)), dict(_recipe_keys(one))
        fold = given.get("data.fold")
        names = expected.keys() | given.keys()
        others = {name for name in names if expected.get(name) != given.get(name)} - {"data.fold"}
        if others:
            raise DataError(
                "--fold: expected checkpoints of one recipe that differ in data.fold only, got "
                f"another {', '.join(sorted(others))}"
            )
        if fold is None or fold in seen:
            raise DataError(
                "--fold: expected a checkpoint of another data.fold each, got "
                f"{'one without' if fold is None else f'fold {fold} twice'}"
            )
        seen.add(fold)


def _recipe_keys(config: CheckpointConfig) -> Iterator[tuple[str, Any]]:
    """The keys of the recipe of a training with their values, without where they come from."""

    def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, Mapping):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    recipe = config.provenance["recipe"]
    yield from leaves({key: value for key, value in recipe.items() if key not in SOURCE})


def joined(parts: Sequence[PolicyInputs], images: Sequence[LabelledImage]) -> PolicyInputs:
    """The inputs of several checkpoints as those of one, without attributes.

    `images`: of all parts, in their order.
    """

    def all_of(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    names = ("scores", "critical_scores", "entropy", "critical", "target", "outside")
    known = all(part.distance is not None for part in parts)
    return PolicyInputs(
        **{name: all_of(name) for name in names},
        flags={
            reason: np.concatenate([part.flags[reason] for part in parts])
            for reason in parts[0].flags
        },
        units=Units.of(images),
        distance=all_of("distance") if known else None,
    )
