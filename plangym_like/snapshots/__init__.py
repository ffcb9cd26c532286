"""The memory of wrappers and of environments written in Python, as bytes and back."""
