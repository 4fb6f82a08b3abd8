"""Programs that the service is compared with."""
