"""Layers with the interfaces of other packages."""
