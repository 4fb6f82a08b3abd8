"""Clients of the HTTP service: blocking and asynchronous."""
