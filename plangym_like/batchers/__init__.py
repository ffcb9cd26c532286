"""Three APIs that step environments and return batches of torch tensors.

``batchers.rollout``      an endless iterator of time-major fragments, for actor-critic learners
``batchers.episodes``     whole episodes on demand
``batchers.workspaces``   agents that read and write the tensors of one workspace

They share lanes (`stepping`), trees of tensors (`trees`), weights and workers, and do not import
each other. Outside this folder, only the torchrl adapters in `plangym_like.vector` import torch.
"""

from __future__ import annotations

from plangym_like.support.lazy_imports import needs_extra

with needs_extra("plangym_like.batchers needs torch", "torch", "torch"):
    import torch

from plangym_like.batchers.workers.group import Workers

__all__ = ["Workers"]

del torch
