"""plangym_like's workspaces: the same as the BBRL contender, with this package's classes."""

from __future__ import annotations

from contenders.boards import open_board
from contenders.contract import Job, Work

PACKAGES = ("plangym_like", "torch", "gymnasium", "numpy")


def open_job(job: Job) -> Work:
    """Open the environments in this process, as ParallelGymAgent does."""
    from plangym_like.batchers import workspaces

    return open_board(job, workspaces)
