"""The section of a model card on the local pictures of a site."""

import re

from eulerlora.checkpoint.config import CheckpointConfig

_TITLE = "Site calibration"
_HEADING = re.compile(r"^## ", re.MULTILINE)


def site_section(config: CheckpointConfig) -> str | None:
    """Markdown with a heading, or None if nothing was fitted to local pictures.

    It shows `provenance["site"]`, written by `eulerlora site fit`.
    """
    site = config.provenance.get("site")
    if site is None:
        return None
    counts = ", ".join(f"{count} of `{name}`" for name, count in site["units"].items())
    results = "\n".join(f"- {part}: {result}" for part, result in site["results"].items())
    weights = f"The weights are those of revision {site['source']}."
    if site.get("heads"):
        weights = (
            f"The heads were refitted to them; all other weights are those of revision "
            f"{site['source']}, which gave the results in other sections."
        )
    return (
        f"## {_TITLE}\n\n`eulerlora site fit` fitted this checkpoint to local pictures, "
        f"{site['data']}: {site['images']:,} images ({site['unit']}s: {counts}).\n\n"
        f"{results}\n\n{weights} The results in other sections are on the data that they name, "
        "not on local pictures.\n\n"
    )


def site_card(card: str, config: CheckpointConfig) -> str:
    """A model card with the section on local pictures as its first one.

    Args:
        card: Of the checkpoint with the same weights; it may have such a section already.
        config: Of the new checkpoint.
    """
    head, *sections = _HEADING.split(card)
    kept = [f"## {section}" for section in sections if not section.startswith(f"{_TITLE}\n")]
    return "".join([head.rstrip("\n") + "\n\n", site_section(config) or "", *kept])
