"""The media type of a response, chosen by the header Accept (RFC 9110, 12.5.1)."""

from dataclasses import dataclass

from eulerlora_client.contract.problems import NotAcceptable

JSON, FHIR_JSON = "application/json", "application/fhir+json"
OFFERED = (JSON, FHIR_JSON)  # the first one wins among equals
FHIR_VERSIONS = ("4.0", "4.0.1")


@dataclass(frozen=True)
class MediaRange:
    """An entry of an Accept header, in lower case. quality: 0 to 1."""

    media_type: str
    fhir_version: str | None = None
    quality: float = 1.0

    def specificity(self, media_type: str) -> int:
        """Returns 3 for the media type itself, 2 and 1 for a wildcard, 0 if it is excluded."""
        if self.fhir_version not in (None, *FHIR_VERSIONS):
            return 0
        ranges = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
        return ranges.index(self.media_type) + 1 if self.media_type in ranges else 0


def chosen_media_type(accept: str | None) -> str:
    """Returns the media type of OFFERED that an Accept header prefers; JSON without a header.

    Raises NotAcceptable if the header excludes all of them.
    """
    if not accept or not accept.strip():
        return JSON
    ranges = [_media_range(entry) for entry in accept.split(",")]
    qualities = {offered: _quality(offered, ranges) for offered in OFFERED}
    best = max(OFFERED, key=lambda offered: qualities[offered])
    if qualities[best] == 0:
        versions = " or ".join(FHIR_VERSIONS)
        raise NotAcceptable(f"expected Accept: {JSON}, or {FHIR_JSON} of version {versions}")
    return best


def _quality(offered: str, ranges: list[MediaRange]) -> float:
    """Returns the quality of the most specific range that includes a media type."""
    matching = [entry for entry in ranges if entry.specificity(offered)]
    if not matching:
        return 0.0
    return max(matching, key=lambda entry: entry.specificity(offered)).quality


def _media_range(entry: str) -> MediaRange:
    media_type, *parameters = (part.strip() for part in entry.lower().split(";"))
    values = dict(part.partition("=")[::2] for part in parameters)
    try:
        quality = min(1.0, max(0.0, float(values.get("q", "1"))))
    except ValueError:
        quality = 0.0
    version = values.get("fhirversion")
    return MediaRange(media_type, version and version.strip('"'), quality)
