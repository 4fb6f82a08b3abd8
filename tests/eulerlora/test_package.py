"""Which modules an import loads."""

import subprocess
import sys


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
