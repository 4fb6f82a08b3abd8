"""HTTP: protocol, limits, admission, uploads, disconnects and problem responses."""
