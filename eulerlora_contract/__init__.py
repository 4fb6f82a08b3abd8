"""What all packages share: errors, settings, the wire contract and the triage policy.

It needs neither PyTorch nor FastAPI.
"""

__version__ = "0.1.0"
"""Of both distributions."""
