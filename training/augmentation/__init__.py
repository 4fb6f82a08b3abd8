"""Random views of training images."""
