"""Small things that every part of the package uses."""
