"""The start of the `eulerlora` program, also as `python -m eulerlora_contract`."""

import signal
import sys


def main() -> None:
    """Runs the program; see `eulerlora_contract.program.main`."""
    if "serve" in sys.argv[1:3]:
        # A request to reload, which would end the process until the service can handle it. First,
        # because the imports of the program take a moment.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from eulerlora_contract.processes import module_path  # noqa: PLC0415

    sys.path[:] = module_path()  # a `training/` or `service.py` of the working folder is not ours
    from eulerlora_contract import program  # noqa: PLC0415

    program.main()


if __name__ == "__main__":
    main()
