"""Weight distributions that are fitted to finished adapters."""
