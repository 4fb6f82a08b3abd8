"""The command `eulerlora predict`."""
