"""Save and restore wrappers, and environments written in Python, as bytes."""
