"""Studies of the method: programs, protocols and results. Nothing imports this package."""
