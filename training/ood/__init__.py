"""Out-of-distribution sets: generated pictures, changed test images, and images of the user."""
