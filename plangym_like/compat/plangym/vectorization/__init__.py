"""Environments whose batches are stepped in many processes."""

from plangym_like.compat.plangym.vectorization.parallel import ParallelEnv
from plangym_like.compat.plangym.vectorization.ray import RayEnv

__all__ = ["ParallelEnv", "RayEnv"]
