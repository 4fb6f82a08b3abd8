"""Files of a checkpoint's folder, as tests change them."""

from pathlib import Path

from eulerlora.checkpoint.config import CheckpointConfig

ADAPTERS_FILE = "adapters.safetensors"


def write_config(folder: Path, config: CheckpointConfig) -> None:
    (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
