"""Step batches in this process and in worker processes."""
