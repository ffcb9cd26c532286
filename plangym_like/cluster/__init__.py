"""Batches on a Ray cluster: workers on this machine, and an actor on each other node."""
