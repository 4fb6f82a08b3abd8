"""Images and requests, valid and invalid."""
