"""The README of an exported folder."""

import json

from eulerlora.checkpoint.files import Checkpoint


def readme(checkpoint: Checkpoint, library: str, use: str) -> str:
    """Returns Markdown: origin, what the export lacks, use and preprocessing. use: Markdown."""
    config = checkpoint.config
    preprocessing = config.preprocessing.model_dump(mode="json")
    colours = (
        "\n`colour_constancy` is applied after the resize and before the mean (eulerlora's "
        "`colour_constancy` module); this folder does not contain it.\n"
        if config.preprocessing.colour_constancy != "none"
        else ""
    )
    count = config.adapters.settings.adapters
    classes = "\n".join(f"{i}. `{label.name}`" for i, label in enumerate(config.classes))
    return f"""# {config.name} for {library}

Exported from the EulerLoRA checkpoint `{config.name}`, revision {checkpoint.revision}:
mode det, with {count} adapter(s), whose probabilities are averaged.

**The stochastic mode cannot be expressed here.** {library} has no random coefficients, so this
folder gives neither sampled probabilities nor their mutual information. Thresholds,
out-of-distribution scores and prediction sets of the checkpoint are not exported either. Use the
checkpoint itself for those.

## Use

{use}

## Classes

{classes}

## Preprocessing

```json
{json.dumps(preprocessing, indent=2)}
```
{colours}"""
