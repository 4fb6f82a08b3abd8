"""Training of all weights of a backbone: single networks and ensembles of them."""
