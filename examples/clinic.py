"""A clinic's calibration and monitor.

Fit thresholds and a triage policy to a site's own labelled pictures, serve them, and test on
confirmed outcomes whether too many lesions are missed. The pictures are drawn and show no lesions.
"""

# %%
import atexit
import csv
import socket
import subprocess
import sys
from pathlib import Path

from pictures import draw_spots

from eulerlora_client import RetryPolicy, TriageClient

CHECKPOINT = Path(__file__).parents[1] / "eulerlora" / "default"
PROGRAM = [sys.executable, "-m", "eulerlora_contract"]
draw_spots(Path("local"))

# %% [markdown]
# **Fit.** Labels of the site are mapped to classes of the checkpoint. Half of the pictures are
# held out to compare the old thresholds with the new ones. The table says what the pictures were
# enough for; with 20 of a class no sensitivity of 0.95 can be established, and the policy says so
# in every answer.

# %%
subprocess.run(
    [
        *PROGRAM, "site", "fit", CHECKPOINT, "--data", "local", "--out", "site",
        "--class", "even=nv", "--class", "uneven=mel", "--hold-out", "0.5", "--always-include-rare",
    ],
    check=True,
)  # fmt: skip

# %% [markdown]
# **Serve** the new checkpoint with its policy. The client waits until the service is ready.

# %%
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
serve = [*PROGRAM, "serve", "site", "--policy", "site/policy.toml", "--port", str(port)]
service = subprocess.Popen(serve)
atexit.register(service.wait)
atexit.register(service.terminate)  # the last one registered is called first
url = f"http://127.0.0.1:{port}"
with TriageClient(url, retry=RetryPolicy(service_s=300)) as client:
    print("policy version", client.policy().policy["version"])

# %% [markdown]
# **Triage** the pictures of a day. The shift monitor counts them too: `shift` of the model says
# how far they differ from the calibration. New pictures of the same kind should not raise an
# alarm.

# %%
draw_spots(Path("today"), per_class=10, seed=1)
subprocess.run(
    [*PROGRAM, "triage", "today", "--url", url, "--csv", "rows.csv", "--report", "report.html"],
    check=True,
)
with TriageClient(url) as client:
    shift = client.model(client.models()[0].name).shift
    print("alarm:", shift.alarm if shift else "no monitor")

# %% [markdown]
# **Outcomes.** Once classes are confirmed, add them as a column `confirmed`; here the folder says
# it. `eulerlora monitor` tests whether more lesions are missed than the policy allows, and may
# run every day. Its exit status is 1 after an alarm.

# %%
with Path("rows.csv").open(encoding="utf-8-sig", newline="") as file:
    rows = list(csv.DictReader(file))
for row in rows:
    row["confirmed"] = "mel" if "uneven" in row["file"] else "nv"
with Path("outcomes.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
monitored = subprocess.run(
    [*PROGRAM, "monitor", "outcomes.csv", "--policy", "site/policy.toml"], check=False
)
print("alarm" if monitored.returncode else "no alarm")

# %% [markdown]
# Next: [adapt and monitor a site](../clinic/docs/site.md) says what each part needs and what it
# gave on pictures of another hospital.
