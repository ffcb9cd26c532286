"""`WithCallerSettings`: makes objects in workers, with the settings of the caller's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plangym_like.batchers.engine.group_context import GroupContext
from plangym_like.execution.known_ids import know, known_ids


class WithCallerSettings:
    """Calls `make_object` in a worker, after adopting the settings of the process that made this.

    The settings are the registered ids, which decide what environments a factory makes, and torch's
    default dtype and precision, which decide how an actor computes.

    Parameters
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group.
    """

    def __init__(self, make_object: Callable[[GroupContext], Any]) -> None:
        self._make_object = make_object
        self._ids = known_ids()
        self._dtype = torch.get_default_dtype()
        self._precision = torch.get_float32_matmul_precision()

    def __call__(self, context: GroupContext) -> Any:
        """Adopt the settings, and return the object of the group that `context` belongs to."""
        know(self._ids)
        torch.set_default_dtype(self._dtype)
        torch.set_float32_matmul_precision(self._precision)
        return self._make_object(context)
