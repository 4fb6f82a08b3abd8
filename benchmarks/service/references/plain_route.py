"""Reference: the FastAPI route that one writes first, with the functions of the library.

As a program, `python -m benchmarks.service.references.plain_route` serves on a free port.
`POST /predict` takes a form with the fields `file` and `mode`. FastAPI runs the route in its pool
of threads, an image at a time in each; nothing is batched or checked.
"""

from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, File, Form

from benchmarks.service.references.library import body, decode, default_model, predict
from eulerlora_client.contract.sampling import Mode


def application() -> FastAPI:
    """Returns the application: /predict and /readyz."""
    app, model = FastAPI(), default_model()

    @app.post("/predict")
    def predict_route(
        file: Annotated[bytes, File()], mode: Annotated[Mode, Form()] = "det"
    ) -> dict[str, Any]:
        (trajectories,) = predict(model, [decode(model, file, mode)])
        return body(model, trajectories)

    @app.get("/readyz")
    async def ready() -> None:
        return None

    return app


if __name__ == "__main__":
    uvicorn.run(application(), port=0, access_log=False)
