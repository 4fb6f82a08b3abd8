"""Sends requests to the server of a running container. Runs inside it, on stdin, as its user.

Uses only the image's Python and Pillow. Prints what it did. At the first unexpected result it
ends with status 1 and a line that says what was expected and what was received.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

ADDRESS = "http://127.0.0.1:8000"
START_S = 600
UNKNOWN_USER = 12345
PREDICTION = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "ood_scores", "unfamiliar", "warnings",
}  # fmt: skip


def expect(condition: bool, expected: str, actual: object) -> None:
    """Ends the program with one line unless `condition` is true."""
    if not condition:
        sys.exit(f"expected {expected}; got {actual!r}")


def wait_until_ready() -> float:
    """Returns the seconds until /readyz first answered 200."""
    started = time.monotonic()
    while (elapsed_s := time.monotonic() - started) < START_S:
        try:
            with urllib.request.urlopen(ADDRESS + "/readyz", timeout=5):
                return elapsed_s
        except OSError:
            time.sleep(0.2)
    sys.exit(f"expected /readyz to answer 200 within {START_S} s")


def jpeg() -> bytes:
    """Returns a JPEG of a gradient, 320 x 240."""
    gradient = Image.linear_gradient("L").resize((320, 240))
    file = BytesIO()
    Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180))).save(file, "JPEG")
    return file.getvalue()


def predict(query: str) -> dict[str, Any]:
    """Returns the prediction for the JPEG after a check of its keys and probabilities."""
    request = urllib.request.Request(
        f"{ADDRESS}/predict?{query}", jpeg(), {"Content-Type": "image/jpeg"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            prediction: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"expected 200 from /predict?{query}; got {error.code} {error.read()[:500]!r}")
    expect(prediction.keys() == PREDICTION, f"the keys {sorted(PREDICTION)}", sorted(prediction))
    probabilities = prediction["probabilities"]
    total = sum(probabilities.values())
    expect(abs(total - 1) < 1e-3, "probabilities that sum to 1", probabilities)
    top = max(probabilities, key=probabilities.get)
    expect(prediction["label"] == top, "the most probable label", prediction)
    expect(prediction["mutual_information"] >= -1e-6, "mutual information >= 0", prediction)
    return prediction


def listens_on_all_addresses() -> bool:
    """True if port 8000 is open on all addresses, so that it can be published."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    sockets = (entry.split(":") for entry in listening)
    return any(set(address) == {"0"} and int(port, 16) == 8000 for address, port in sockets)


def main() -> None:
    """Runs all checks in order."""
    expect(os.getuid() == UNKNOWN_USER, f"user id {UNKNOWN_USER}", os.getuid())
    expect(bool(os.statvfs("/").f_flag & os.ST_RDONLY), "a read-only root", "a writable one")
    print(f"ready after {wait_until_ready():.1f} s, as user {UNKNOWN_USER}, with a read-only root")
    expect(listens_on_all_addresses(), "port 8000 on all addresses", "a different socket")
    det = predict("mode=det")
    stoch = predict("mode=stoch&samples=4&seed=1")
    expect((det["mode"], stoch["mode"]) == ("det", "stoch"), "modes det and stoch", (det, stoch))
    expect(stoch["samples"] == 4, "4 samples", stoch["samples"])
    repeated = predict("mode=stoch&samples=4&seed=1") | {"request_id": stoch["request_id"]}
    expect(repeated == stoch, "the same prediction for the same seed", repeated)
    print(f"predicted in modes det and stoch: {det['label']}, {stoch['label']} of {det['model']}")
    status = Path("/proc/1/status").read_text().splitlines()
    peak = next(line.split(":")[1].strip() for line in status if line.startswith("VmHWM"))
    print(f"peak memory of the server: {peak}")


if __name__ == "__main__":
    main()
