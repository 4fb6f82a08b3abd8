"""Serve on Ray.

Run the service as an application of Ray Serve on this machine, ask it, and stop it. It needs
`pip install './lab[ray]'`.
"""

# %% [markdown]
# The middleware repeats the request of a replica that was lost.

# %%
import os
from pathlib import Path

os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = (
    "eulerlora_lab.ray_serve.retry.middlewares"
)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve

from eulerlora_client import TriageClient
from eulerlora_lab.ray_serve.application import NAME, Arguments, build

LESION = Path(__file__).parents[1] / "docs" / "images" / "example-lesion.jpg"
PORT = int(os.environ.get("PORT", "8000"))

# %% [markdown]
# `Arguments` are those of `eulerlora serve`; with `checkpoints` empty, a replica serves the
# embedded model. `serve.run` returns when a replica has reproduced its known answers.

# %%
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": PORT})
serve.run(build(Arguments(open_to_all=True)), name=NAME, route_prefix="/")

# %% [markdown]
# The interface is that of the service. Replicas give the same answer to the same request, because
# the seed is derived from the picture.

# %%
with TriageClient(f"http://127.0.0.1:{PORT}") as client:
    for _ in range(4):
        answer = client.predict(LESION, mode="stoch")
        print(answer.label, f"{answer.msp:.4f}")
print(serve.status().applications[NAME].status)
serve.shutdown()
ray.shutdown()

# %% [markdown]
# On a cluster, [serve.yaml](../lab/eulerlora_lab/ray_serve/serve.yaml) states arguments, keys and
# the number of replicas, and `serve deploy` starts them: [Ray
# Serve](../docs/how-to/deploy.md#ray-serve), with what differs from `eulerlora serve`.
#
# **On KServe** the container is an `InferenceService`, which [the Helm
# chart](../docs/how-to/deploy.md#kubernetes) makes with
# `kserve.enabled`. Its clients speak the [Open Inference
# Protocol](../docs/how-to/clients.md#open-inference-protocol), as every `eulerlora serve` does.
