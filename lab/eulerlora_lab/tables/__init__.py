"""Tables of results: their definition, the runs that they need, and what is printed of them."""
