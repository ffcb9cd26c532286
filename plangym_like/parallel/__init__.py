"""Processes, shared memory, and the environments that run on them."""
