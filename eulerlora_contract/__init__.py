"""What all packages share: errors, settings, the wire contract and the triage policy.

It needs neither PyTorch nor FastAPI.
"""

import sys

__version__ = "0.1.0"
"""Of all distributions."""

if sys.platform != "linux":  # file locks, sandboxed decoders
    raise ImportError(f"EulerLoRA runs on Linux, got {sys.platform}: use a container or WSL")
