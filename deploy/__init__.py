"""How the service is put into a container, and how that is checked."""
