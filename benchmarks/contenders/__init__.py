"""The contenders: one module for each, which opens the jobs that the contender can do."""
