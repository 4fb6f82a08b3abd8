"""Schedulers of training runs: on the devices of this machine, or on a Ray cluster."""
