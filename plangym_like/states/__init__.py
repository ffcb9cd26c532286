"""State rows: their format, their files, and the generators in them."""
