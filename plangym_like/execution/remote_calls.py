"""plangym's calls of an `ExternalProcess` that hosts a `PlanEnv`.

The hosted class names them in its attribute ``remote_calls``. The first argument of each function
is the process; the others are plangym's, followed by the options of the hosted method. With
``blocking=False``, a function returns a `Future` of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from plangym_like.results import Future


class Process(Protocol):
    """The part of an `ExternalProcess` that is needed here."""

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the hosted object's method `name`, and return the future of its result."""


def step(
    process: Process,
    action: Any,
    state: Any = None,
    dt: Any = 1,
    blocking: bool = True,
    **options: Any,
) -> Any:
    """Step the hosted environment."""
    if state is not None:
        options["state"] = state
    if not (isinstance(dt, int) and dt == 1):
        options["dt"] = dt
    return _result(process.call("step", action, **options), blocking)


def step_batch(
    process: Process,
    actions: Any,
    states: Any = None,
    dt: Any = 1,
    return_state: bool | None = None,
    blocking: bool = True,
    **options: Any,
) -> Any:
    """Step many rows in the hosted environment; see `PlanEnv.step_batch`."""
    options.update(states=states, dt=dt, return_state=return_state)
    return _result(process.call("step_batch", actions, **options), blocking)


def reset(
    process: Process, blocking: bool = True, return_states: bool = False, **options: Any
) -> Any:
    """Reset the hosted environment; by default, return no state."""
    options.setdefault("return_state", return_states)
    return _result(process.call("reset", **options), blocking)


def set_state(process: Process, state: Any, blocking: bool = True) -> Any:
    """Set the state of the hosted environment."""
    return _result(process.call("set_state", state), blocking)


REMOTE_CALLS: dict[str, Callable[..., Any]] = {
    "step": step,
    "step_batch": step_batch,
    "reset": reset,
    "set_state": set_state,
}


def _result(future: Future[Any], blocking: bool) -> Any:
    return future.result() if blocking else future
