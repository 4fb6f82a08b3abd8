"""Every problem and answer is public."""

import eulerlora_client
from eulerlora_client.contract import answers, problems

INNER = {"ModelList", "ServiceStatus", "WireModel"}  # not what a method of the clients returns


def test_every_problem_and_wire_model_is_public() -> None:
    for module in (problems, answers):
        defined = {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and kind.__module__ == module.__name__
        }
        assert defined - INNER <= set(eulerlora_client.__all__)
