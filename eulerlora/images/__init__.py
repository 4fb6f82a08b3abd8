"""Images from files to the network's input."""

MAX_PIXELS_VARIABLE = "EULERLORA_MAX_PIXELS"
"""The environment variable of `eulerlora.images.decode.local_limits`."""
