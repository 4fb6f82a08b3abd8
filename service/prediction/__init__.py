"""Predictions: the path of a request from its upload to its response body."""
