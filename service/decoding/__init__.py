"""Image decoding in worker processes."""
