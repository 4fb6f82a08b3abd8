"""Clients that send load to a server."""
