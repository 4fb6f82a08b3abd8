"""Training of adapters, distributions around them, and whole networks."""
