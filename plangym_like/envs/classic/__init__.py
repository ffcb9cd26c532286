"""Gymnasium's classic control, whose rows are stepped in blocks by NumPy."""
