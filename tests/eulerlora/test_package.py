"""The public names of eulerlora, and the modules that importing it loads."""

import inspect
import subprocess
import sys

import eulerlora
from eulerlora import errors


def error_classes() -> dict[str, type[Exception]]:
    classes = inspect.getmembers(errors, inspect.isclass)
    return {n: c for n, c in classes if c.__module__ == errors.__name__ and not n.startswith("_")}


def test_public_names_exist_and_are_listed_once_in_order() -> None:
    assert all(hasattr(eulerlora, name) for name in eulerlora.__all__)
    assert eulerlora.__all__ == sorted(set(eulerlora.__all__))


def test_every_public_error_is_exported_and_descends_from_one_base() -> None:
    for name, error in error_classes().items():
        assert name in eulerlora.__all__
        assert getattr(eulerlora, name) is error
        assert issubclass(error, eulerlora.EulerLoRAError)
    assert issubclass(eulerlora.EulerLoRAError, Exception)


def test_the_names_of_the_contract_are_public() -> None:
    assert {"EulerLoRA", "Predictions"} <= set(eulerlora.__all__)


def test_dir_lists_the_public_names() -> None:
    assert dir(eulerlora) == eulerlora.__all__


def modules_after(statement: str, *names: str) -> str:
    """Returns those of the modules that a new interpreter has after a statement, as a set."""
    program = f"import sys; {statement}; print({set(names)} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_package_and_its_command_import_neither_torch_nor_pydantic() -> None:
    imported = modules_after("import eulerlora, eulerlora.commands", "torch", "pydantic", "PIL")
    assert imported == "set()"


def test_torchvision_is_imported_only_for_published_weights() -> None:
    """It imports torch's compiler, and takes longer than torch."""
    names = ("torchvision", "torch._dynamo")
    assert modules_after("import eulerlora.model", *names) == "set()"


def test_a_checkpoint_is_loaded_without_the_compiler_of_torch() -> None:
    """Its import takes longer than the rest of the start."""
    statement = "from eulerlora import EulerLoRA; EulerLoRA.default('cpu')"
    assert modules_after(statement, "torch._dynamo") == "set()"
