"""`StepCall`: one step that the caller of `ProcessLanes` has requested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plangym_like.vector.lanes import Lanes
from plangym_like.vector.lanes_worker import Job, LanesWorker
from plangym_like.vector.step_arrays import Flags, StepArrays
from plangym_like.vector.tree import take, tree_map


class StepCall(NamedTuple):
    """A requested step, and the caller's arrays for the results.

    Attributes
    ----------
    method : {"step", "step_next", "step_same"}
        The method of `Lanes` to call.
    actions, out
        As in `Lanes.step`.
    lanes : list of int or None
        Which lanes are stepped; ``None`` for all.
    ended : array bool or None
        Which lanes are reset instead of stepped.
    """

    method: str
    actions: Any
    out: StepArrays
    lanes: Sequence[int] | None = None
    ended: Flags | None = None

    def job(self, worker: LanesWorker, *, shared: bool, kept: bool) -> Job:
        """Return the job that does this step for the lanes of `worker`.

        Parameters
        ----------
        worker : LanesWorker
        shared : bool
            Whether the actions are in the shared memory, so that they need not be sent.
        kept : bool
            Whether the job is kept, so that it can be repeated later.
        """
        own = worker.own(self.lanes)
        actions = None if shared else take(self.actions, worker.rows)
        kept_args = partial(self._kept_args, worker, own) if kept else None
        return Job("step", (self.method, actions, own, None), kept_args)

    def _kept_args(self, worker: LanesWorker, own: Sequence[int] | None) -> tuple[Any, ...]:
        actions = tree_map(np.copy, take(self.actions, worker.rows))
        ended = None if self.ended is None else self.ended[worker.rows].copy()
        return self.method, actions, own, ended

    def run_here(self, lanes: Lanes) -> tuple[dict[int, Any], Sequence[int]]:
        """Do this step for `lanes`, the lanes of this process; their numbers start at 0.

        Returns
        -------
        dict of int to (observation, info)
            The result of `Lanes.step_same`; empty for other methods.
        sequence of int
            The lanes that have new infos.
        """
        own = None if self.lanes is None else [n for n in self.lanes if n < lanes.num_lanes]
        if own == []:
            return {}, ()
        rows = slice(0, lanes.num_lanes)
        arguments = take(self.actions, rows), take(self.out, rows)
        stepped: Sequence[int] = range(lanes.num_lanes) if own is None else own
        finals: dict[int, Any] = {}
        if self.method == "step_same":
            finals = lanes.step_same(*arguments, own)
        elif self.ended is not None:
            lanes.step_next(*arguments, self.ended[rows], own)
        else:
            lanes.step(*arguments, own)
        return finals, stepped
