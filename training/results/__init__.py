"""Results of tables of runs, and comparisons of their rows."""
