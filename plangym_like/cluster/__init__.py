"""Batches on a Ray cluster: an actor on each node that steps its rows in processes of its own."""
