"""`GET /docs`: Swagger UI with the OpenAPI document, under the security policy of the page."""

from collections.abc import Mapping
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

from service.routes.page import INDEX, MEDIA_TYPES, PageFile, file_response

SWAGGER_UI = "fastapi_swagger.resources"  # the published files of Swagger UI, unchanged
SWAGGER_UI_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
OWN_FILES = (INDEX, "start.js", "style.css")


def documentation_routes() -> APIRouter:
    """Returns the routes of the documentation and its files."""
    by_name = documentation_files()
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def documentation(request: Request) -> Response:
        """Returns the page."""
        return file_response(request, by_name[INDEX])

    @router.get("/docs/{name}")
    async def documentation_file(request: Request, name: str) -> Response:
        """Returns a file that the page uses."""
        if name not in by_name or name == INDEX:
            raise HTTPException(404)
        return file_response(request, by_name[name])

    return router


def documentation_files() -> Mapping[str, PageFile]:
    """Returns the files of the documentation by name."""
    own, published = files("service").joinpath("page", "docs"), files(SWAGGER_UI)
    sources = {**dict.fromkeys(OWN_FILES, own), **dict.fromkeys(SWAGGER_UI_FILES, published)}
    return {
        name: PageFile.of(folder.joinpath(name).read_bytes(), _media_type(name))
        for name, folder in sources.items()
    }


def _media_type(name: str) -> str:
    return MEDIA_TYPES["." + name.rpartition(".")[2]]
