"""Batches on a Ray cluster: workers on this machine, and actors on the other nodes."""
