"""Trying states in a worker first, where damaged ones could crash the simulator of this process."""

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
    """Have an isolated executor step `states`, before they are used in this process.

    A checksum finds damage by accident, not by intent.

    Parameters
    ----------
    executor : Executor
        One that is isolated.
    layout : Layout
        What its batches look like.
    states : row or rows
    actions, dt
        What to step them by; one random action if left out.
    many : bool
        Whether more than one state is meant; else nothing is tried of several.

    Raises
    ------
    WorkerError
        A row ended or hung its workers. Other errors are left to what the caller does next: they
        come up there as well.
    """
    if actions is None:
        actions = [copy.deepcopy(layout.action_space).sample()]
    try:
        inputs = layout.check(actions, states, dt, None)
        if inputs.count == 1 or many:
            executor.submit(inputs, SubmitOptions())
    except WorkerError as error:
        # The environment may raise errors of this kind about workers of its own.
        if not is_remote(error):
            raise
    except Exception:
        return
