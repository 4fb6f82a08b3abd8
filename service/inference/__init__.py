"""The request queue, batched inference and the served models."""
