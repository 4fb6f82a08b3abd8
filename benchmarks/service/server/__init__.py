"""Server processes, their memory and their recovery."""
