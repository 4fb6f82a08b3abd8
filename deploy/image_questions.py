"""Questions to the server of a running container. Runs in it, as the server's user, on stdin.

The image's own Python and Pillow; prints what it did and ends with status 1, and a line that says
what was wanted and what came, at the first surprise.
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
START_S = 240
UNKNOWN_USER = 12345
PREDICTION = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "warnings",
}  # fmt: skip


def want(true: bool, wanted: str, came: object) -> None:
    """Ends the program with one line unless `true`."""
    if not true:
        sys.exit(f"wanted {wanted}; got {came!r}")


def wait_until_ready() -> float:
    """Seconds until /readyz first answered 200."""
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < START_S:
        try:
            with urllib.request.urlopen(ADDRESS + "/readyz", timeout=5):
                return waited_s
        except OSError:
            time.sleep(0.2)
    sys.exit(f"wanted /readyz to answer 200 within {START_S} s")


def picture() -> bytes:
    """A made-up JPEG: a gradient, 320 x 240."""
    gradient = Image.linear_gradient("L").resize((320, 240))
    file = BytesIO()
    Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180))).save(file, "JPEG")
    return file.getvalue()


def predict(query: str) -> dict[str, Any]:
    """The prediction for the picture; every key and the sum of the probabilities are checked."""
    request = urllib.request.Request(
        f"{ADDRESS}/predict?{query}", picture(), {"Content-Type": "image/jpeg"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"wanted 200 of /predict?{query}; got {error.code} {error.read()[:500]!r}")
    want(answer.keys() == PREDICTION, f"the keys {sorted(PREDICTION)}", sorted(answer))
    probabilities = answer["probabilities"]
    want(abs(sum(probabilities.values()) - 1) < 1e-3, "probabilities that sum to 1", probabilities)
    want(answer["label"] == max(probabilities, key=probabilities.get), "the top label", answer)
    want(answer["mutual_information"] >= -1e-6, "mutual information in nats", answer)
    return answer


def listens_everywhere() -> bool:
    """Whether port 8000 is open on all addresses, so that it can be published."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    return any(set(a) == {"0"} and int(p, 16) == 8000 for a, p in (x.split(":") for x in listening))


def main() -> None:
    """All questions, in order."""
    want(os.getuid() == UNKNOWN_USER, f"user id {UNKNOWN_USER}", os.getuid())
    want(bool(os.statvfs("/").f_flag & os.ST_RDONLY), "a read-only root", "one to write to")
    print(f"ready after {wait_until_ready():.1f} s, as user {UNKNOWN_USER}, with a read-only root")
    want(listens_everywhere(), "port 8000 on all addresses", "another one")
    det = predict("mode=det")
    stoch = predict("mode=stoch&samples=4&seed=1")
    want((det["mode"], stoch["mode"]) == ("det", "stoch"), "modes det and stoch", (det, stoch))
    want(stoch["samples"] == 4, "4 samples", stoch["samples"])
    want(stoch == {**predict("mode=stoch&samples=4&seed=1"), "request_id": stoch["request_id"]},
         "the same answer to the same question", stoch)  # fmt: skip
    print(f"answered det and stoch: {det['label']}, {stoch['label']} of {det['model']}")
    server = Path("/proc/1/status").read_text().splitlines()
    peak = next(line.split(":")[1].strip() for line in server if line.startswith("VmHWM"))
    print(f"the server's memory at its greatest: {peak}")


if __name__ == "__main__":
    main()
