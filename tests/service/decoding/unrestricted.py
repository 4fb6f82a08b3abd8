"""The program `hostile` on a kernel that restricts nothing."""

from service.decoding import sandbox
from tests.service.decoding import hostile


def missing() -> str:
    """Refuses, as a kernel does that does not have a mechanism."""
    raise OSError(38, "Function not implemented")


if __name__ == "__main__":
    sandbox.MECHANISMS.update(dict.fromkeys(sandbox.MECHANISMS, missing))
    hostile.main()
