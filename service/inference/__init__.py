"""The request queue, batching and the models."""
