"""Labels of a user's images, by folder or table, their checks and their split."""
