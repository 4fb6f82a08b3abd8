"""The folder of a site's checkpoint and policy, which appears complete or not at all."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import (
    ADAPTERS,
    BACKBONE,
    CARD,
    Checkpoint,
    check_free,
    load_checkpoint,
    new_folder,
    write_card,
    write_config,
    write_feature_statistics,
    write_known_answer,
)
from eulerlora_client.output_files import storage_errors
from training.policy.file import create, set_thresholds
from training.reporting.chart_files import RELIABILITY
from training.reporting.model_card import site_sections

POLICY = "policy.toml"
COPIED = (ADAPTERS, BACKBONE, RELIABILITY)
SECTION = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True)
class FittedPolicy:
    """The text of a policy, and the thresholds with their evidence that replace those in it."""

    text: str
    urgent: float
    entropy_nats: float
    evidence: Mapping[str, Any]


def write_site_checkpoint(
    source: Path, folder: Path, checkpoint: Checkpoint, policy: FittedPolicy | None
) -> None:
    """Writes a checkpoint with the weights of that in `source`, and its policy.

    checkpoint: with the new config. policy: None writes none. The known answer is computed from
    the written files. Raises CheckpointError if `folder` is not empty and StorageError for a full
    disk.
    """
    check_free(folder)
    config = checkpoint.config
    with storage_errors(folder), new_folder(folder) as partial:
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        if checkpoint.feature_distance is not None:
            write_feature_statistics(partial, checkpoint.feature_distance.statistics)
        write_card(partial, site_card((source / CARD).read_text(encoding="utf-8"), config))
        write_config(partial, config)
        write_known_answer(partial, load_checkpoint(partial).network, config)
        if policy is not None:
            file = partial / POLICY
            create(file, policy.text)
            set_thresholds(file, policy.urgent, policy.entropy_nats, policy.evidence)


def site_card(card: str, config: CheckpointConfig) -> str:
    """Returns a model card with the section on local pictures as its first one.

    card: of the checkpoint with the same weights; it may have such a section already. config: of
    the new checkpoint.
    """
    head, *sections = SECTION.split(card)
    new = [f"{title}\n\n{text}\n\n" for title, text in site_sections(config)]
    titles = tuple(f"{title}\n" for title, _ in site_sections(config))
    kept = [section for section in sections if not section.startswith(titles)]
    return "## ".join([head.rstrip("\n") + "\n\n", *new, *kept])
