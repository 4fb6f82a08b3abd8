"""Sequential monitoring: shifts of a model's inputs, and misses among confirmed outcomes."""
