"""How the routes that answer questions about images read their query."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from eulerlora_client.contract.problems import InvalidParameter

Query = TypeVar("Query", bound=BaseModel)


def question_route(kind: type[BaseModel]) -> type[APIRoute]:
    """The class of routes that hand their endpoint a query, and send its response as it is.

    FastAPI's own way, by dependencies and a second validation of the answer, takes three times as
    long; the description it gives is used. kind: of the query.
    """

    class QuestionRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def handle(request: Request) -> Response:
                response: Response = await self.endpoint(request, query_of(request, kind))
                return response

            return handle

    return QuestionRoute


def query_of(request: Request, kind: type[Query]) -> Query:
    """A request's parameters. Raises InvalidParameter and RequestValidationError."""
    sent = request.query_params.multi_items()
    counts = Counter(name for name, _ in sent)
    for name in kind.model_fields:
        if counts[name] > 1:
            raise InvalidParameter(f"{name}: wanted once, given {counts[name]} times")
    try:
        return kind.model_validate(dict(sent))
    except ValidationError as error:
        # the parameter's name alone: after it comes which of its types was tried
        faults = [{**each, "loc": each["loc"][:1]} for each in error.errors()]
        raise RequestValidationError(faults) from error
