"""Query parameters of the prediction routes: strict parsing at low cost."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from eulerlora_client.contract.problems import InvalidParameter

Query = TypeVar("Query", bound=BaseModel)


def strict_query_route(query_type: type[BaseModel]) -> type[APIRoute]:
    """Returns a route class that parses the query as `query_type` and returns the raw response.

    FastAPI's dependency injection and response validation take three times as long; only its
    OpenAPI description is used.
    """

    class StrictQueryRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def handle(request: Request) -> Response:
                response: Response = await self.endpoint(request, parse_query(request, query_type))
                return response

            return handle

    return StrictQueryRoute


def parse_query(request: Request, query_type: type[Query]) -> Query:
    """Returns the query parameters. Raises InvalidParameter and RequestValidationError."""
    sent = request.query_params.multi_items()
    counts = Counter(name for name, _ in sent)
    for name in query_type.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: expected once, got {counts[name]} times")
    try:
        return query_type.model_validate(dict(sent))
    except ValidationError as error:
        # Keeps only the parameter's name of each location; the rest names pydantic's types.
        errors = [{**fault, "loc": fault["loc"][:1]} for fault in error.errors()]
        raise RequestValidationError(errors) from error
