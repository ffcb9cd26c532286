"""How the memory of wrappers and of environments written in Python becomes bytes, and comes back."""
