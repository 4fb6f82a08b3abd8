"""What is drawn at random: masks, coefficients, and how many samples an image gets."""
