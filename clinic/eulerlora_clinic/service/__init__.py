"""The clinic's extension of the service."""
