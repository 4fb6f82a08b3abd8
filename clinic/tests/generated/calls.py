"""Calls every operation with a client that openapi-python-client has generated.

usage: python calls.py FOLDER URL PICTURE     (FOLDER holds the package `generated`)

Prints the type of each answer as JSON, by operation; a problem has its code too.
"""

import json
import sys
from io import BytesIO
from pathlib import Path

folder, url, picture = sys.argv[1:]
sys.path.insert(0, folder)

from generated import Client  # noqa: E402 - from the folder above
from generated.api.models import describe_model, list_models, model_card  # noqa: E402
from generated.api.operations import livez, readyz, scrape  # noqa: E402
from generated.api.predictions import embed, predict, predict_batch  # noqa: E402
from generated.api.triage import (  # noqa: E402
    decide,
    triage,
    triage_batch,
    triage_policy,
)
from generated.models import (  # noqa: E402
    DecisionRequest,
    EmbedFilesBody,
    PredictBatchBody,
    PredictFilesBody,
    PredictMode,
    TriageBatchBody,
    TriageFilesBody,
)
from generated.types import File  # noqa: E402

client = Client(base_url=url)
content = Path(picture).read_bytes()


def file(data: bytes = content) -> File:
    return File(BytesIO(data), "picture.png", "image/png")


answer = triage.sync(client=client, body=TriageFilesBody(file()))
diagnosis = DecisionRequest(answer.prediction.request_id, diagnosis="nv")
stoch = {"mode": PredictMode.STOCH, "samples": "2"}
answers = {
    "predict": predict.sync(client=client, body=PredictFilesBody(file()), **stoch),
    "raw body": predict.sync(client=client, body=file(), samples="auto", mode=PredictMode.STOCH),
    "predict_batch": predict_batch.sync(client=client, body=PredictBatchBody([file(), file(b"x")])),
    "embed": embed.sync(client=client, body=EmbedFilesBody(file())),
    "triage": answer,
    "triage_batch": triage_batch.sync(client=client, body=TriageBatchBody([file()])),
    "decide": decide.sync(client=client, body=diagnosis),
    "triage_policy": triage_policy.sync(client=client),
    "list_models": list_models.sync(client=client),
    "describe_model": describe_model.sync("tiny", client=client),
    "model_card": model_card.sync("tiny", client=client),
    "livez": livez.sync(client=client),
    "readyz": readyz.sync(client=client),
    "scrape": scrape.sync(client=client),
    "unsupported_media": predict.sync(client=client, body=file(b"no picture")),
    "unknown_model": describe_model.sync("other", client=client),
    "invalid_parameter": predict.sync(client=client, body=file(), samples=2),
}
kinds = {name: [type(one).__name__, getattr(one, "code", None)] for name, one in answers.items()}
kinds["entries"] = [type(one).__name__ for one in answers["predict_batch"].results]
print(json.dumps(kinds))
