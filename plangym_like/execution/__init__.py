"""Batches stepped by worker processes."""
