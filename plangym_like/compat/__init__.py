"""Compatibility layers with the interfaces of other packages."""
