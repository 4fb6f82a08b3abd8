"""HTTP: protocol, limits, admission, uploads and problem responses."""
