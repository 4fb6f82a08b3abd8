"""The network: attention with adapters, methods as it sees them, passes of rows."""
