"""Batches: their spaces, checks and arrays, and what steps a row."""
