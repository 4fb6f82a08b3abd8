"""Data sets, splits, augmentation and caches."""
