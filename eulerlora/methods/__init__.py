"""Ways to answer rows on one frozen backbone."""
