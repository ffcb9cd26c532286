"""Step states in a worker first if damaged states could crash this process's simulator."""

from __future__ import annotations

import copy
from typing import Any

from plangym_like.errors import WorkerError
from plangym_like.execution.executor import Executor, SubmitOptions
from plangym_like.layout import Layout
from plangym_like.processes.remote_errors import is_remote


def try_elsewhere(
    executor: Executor,
    layout: Layout,
    states: Any,
    actions: Any = None,
    dt: Any = 1,
    *,
    many: bool = False,
) -> None:
    """Step `states` with an isolated executor before they are used in this process.

    A checksum detects accidental damage, but not deliberate changes.

    Parameters
    ----------
    executor : Executor
        An executor that is isolated.
    layout : Layout
        The layout of the executor's batches.
    states : row or rows
        The states to try.
    actions, dt
        The actions, and how long each is held; without `actions`, one random action.
    many : bool
        Whether to step `states` if there are several; if false, only a single state is stepped.

    Raises
    ------
    WorkerError
        A row killed its workers or hung in them. Other errors are ignored here, because the
        caller's next operation raises them too.
    """
    if actions is None:
        actions = [copy.deepcopy(layout.action_space).sample()]
    try:
        inputs = layout.check(actions, states, dt, None)
        if inputs.count == 1 or many:
            executor.submit(inputs, SubmitOptions(audit=True))  # not counted in `stats`
    except WorkerError as error:
        # The environment may raise errors of this type about its own workers.
        if not is_remote(error):
            raise
    except Exception:
        return
