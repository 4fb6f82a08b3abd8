"""Start, health, reload and shutdown of the process."""
