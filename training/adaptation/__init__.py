"""Training of adapters on a frozen backbone."""
