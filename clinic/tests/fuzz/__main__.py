"""Fuzzes the readers of the clinic."""

import sys
import tempfile

from tests.fuzz.fuzzer import main

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        sys.exit(main("clinic.tests.fuzz"))
