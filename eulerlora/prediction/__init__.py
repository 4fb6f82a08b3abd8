"""From the engine's output to an answer; the choice of the precision."""
