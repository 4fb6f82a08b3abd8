"""Parameters of an inference request, as the query of a prediction."""

from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from eulerlora_client.contract.problems import InvalidParameter
from eulerlora_client.contract.queries import PredictQuery
from service.open_inference.messages import Parameter

BINARY_OUTPUT = "binary_data_output"
MODEL, DETAIL = "model", "detail"


def query_of(model: str, parameters: Mapping[str, Parameter]) -> PredictQuery:
    """Returns the query for a prediction of `model`.

    Numbers and booleans must have their JSON type. Raises InvalidParameter and
    RequestValidationError.
    """
    sent = {name: value for name, value in parameters.items() if name != BINARY_OUTPUT}
    if MODEL in sent:
        raise InvalidParameter(f"{MODEL}: expected in the path")
    if DETAIL in sent:
        raise InvalidParameter(f"{DETAIL}: unknown parameter")
    try:
        return PredictQuery.model_validate({**sent, MODEL: model}, strict=True)
    except ValidationError as error:
        # Keeps only the parameter's name of each location; the rest names pydantic's types.
        errors = [{**fault, "loc": fault["loc"][:1]} for fault in error.errors()]
        raise RequestValidationError(errors) from error


def wants_binary_output(parameters: Mapping[str, Parameter]) -> bool:
    """Returns whether outputs without a parameter of their own are binary.

    Raises InvalidParameter.
    """
    value = parameters.get(BINARY_OUTPUT, False)
    if not isinstance(value, bool):
        raise InvalidParameter(f"{BINARY_OUTPUT}: expected true or false")
    return value
