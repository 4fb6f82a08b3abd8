"""Metrics of predictions, with confidence intervals by lesion."""
