"""Environments as batches of torch tensors, by three APIs.

``batchers.rollout``      an endless iterator of time-major fragments, for actor-critic learners
``batchers.episodes``     whole episodes on demand
``batchers.workspaces``   agents that read and write one workspace of tensors

They share `EpisodeLanes`, `TimeBuffer`, `StartStates`, `Closable` and `batchers.engine`, and do not
import each other. Only this folder imports torch.
"""

from __future__ import annotations

from plangym_like.errors import MissingExtraError

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        "plangym_like.batchers needs torch: pip install 'plangym_like[torch]'"
    ) from error

del torch
