"""Where trained weights come from: recipe, seed, commit, versions, machine, date."""

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch
import torchvision

from eulerlora.config import Provenance
from training.data.datasets import ImageParts, OodSet
from training.recipe.schema import Recipe


def provenance_of(recipe: Recipe, device: torch.device) -> Provenance:
    """The facts that let someone repeat a run on `device`, as JSON values."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "seed": recipe.seed,
        "commit": current_commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def data_facts(images: ImageParts, outliers: OodSet | None = None) -> Provenance:
    """Which data set it was, and what was left out of it; the same of outliers, if any."""
    facts: Provenance = {"data": images.name, "skipped": _left_out(images)}
    if outliers is not None:
        found = {"data": outliers.name, "images": len(outliers.images)}
        facts["outliers"] = found | {"skipped": _left_out(outliers)}
    return facts


def _left_out(images: ImageParts | OodSet) -> Provenance:
    return {"count": len(images.skipped), "names": sorted(images.skipped)}


def _cpu() -> str:
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads != 1)}"


def current_commit() -> str | None:
    """The commit of the checkout this code runs from, "-dirty" where it was changed since."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
