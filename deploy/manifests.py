"""Prints the Kubernetes manifests of an overlay; refuses what the overlay has not set.

    python -m deploy.manifests deploy/kubernetes/base | kubectl apply --namespace NAME --filename -

Images must be named by digest: a tag can be moved to another image, and then a restarted pod runs
something that nobody tested. No value may be REQUIRED. Needs kubectl, and no Python package.
"""

import re
import subprocess
import sys

IMAGE_LINE = re.compile(r"^\s*(?:- )?image: *\"?([^\s\"]*)", re.MULTILINE)
UNSET = "REQUIRED"
BY_DIGEST = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")


class ManifestError(Exception):
    """kubectl is missing or failed, or an overlay lacks a value. The message is one line."""


def without_digest(manifests: str) -> list[str]:
    """The images in manifests, as kubectl prints them, that are not named by digest."""
    return [image for image in IMAGE_LINE.findall(manifests) if not BY_DIGEST.fullmatch(image)]


def rendered(overlay: str) -> str:
    """The manifests of a folder with a kustomization.yaml. Raises ManifestError."""
    try:
        command = ["kubectl", "kustomize", overlay]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ManifestError("expected the program kubectl") from error
    if result.returncode:
        raise ManifestError(f"{overlay}: kubectl failed: {' '.join(result.stderr.split())[-400:]}")
    manifests = result.stdout.strip()
    for image in without_digest(manifests):
        raise ManifestError(
            f"{overlay}: expected an image by digest, got {image}; set newName and digest of the "
            "image eulerlora under `images` of an overlay (docs/how-to/deploy.md)"
        )
    if UNSET in manifests:
        raise ManifestError(f'{overlay}: expected the namespace in the query, got "{UNSET}"')
    return manifests


def main() -> None:
    """Prints the manifests of the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.manifests OVERLAY")
    try:
        print(rendered(sys.argv[1]))
    except ManifestError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
