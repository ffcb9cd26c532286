"""`GivenStates`: loads states from callers in workers, because a forged state may crash a process.

If there are no workers, this process loads them.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.current_state import CurrentState
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.errors import WorkerError
from plangym_like.execution.executor import Executor, SubmitOptions
from plangym_like.execution.job import HostedEnv
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.processes.remote_errors import is_remote
from plangym_like.states.rows import Row

# What takes no longer than a row of a batch: methods of `CurrentState`.
_STEPS = ("step", "step_env", "bring_back")


class GivenStates:
    """Uses the states that callers give: in workers if necessary, otherwise in this process.

    With isolated workers, a forged state cannot crash this process: the simulator here never loads
    a state that a caller gave, or a state that follows from one. This process only holds the row,
    and workers execute the calls. This protection exists for families whose rows have a checksum,
    since only their simulators could crash. It does not exist on a Ray cluster without workers on
    this machine, nor for `PlanEnv.simulator`, which is the simulator of this process.

    Parameters
    ----------
    executor : Executor
    layout : Layout
        The layout of the executor's batches.

    Attributes
    ----------
    tries : bool
        Whether the executor steps given states before this process uses them, in case they crash
        a simulator (see `try_elsewhere`). This is so if no workers on this machine can use them.
    elsewhere : bool
        Whether given states are used only in workers. Each use is then one call of a worker.
    """

    def __init__(self, executor: Executor, layout: Layout) -> None:
        self._executor, self._layout = executor, layout
        guarded = executor.isolated and layout.format.checksum
        self._workers = executor if isinstance(executor, ProcessExecutor) else None
        self.elsewhere = guarded and self._workers is not None and len(self._workers) > 0
        self.tries = guarded and not self.elsewhere
        # The current state's row, as long as the state follows from one that a caller gave.
        self._held: Row | None = None

    def attempt(self, states: Any, actions: Any = None, dt: Any = 1, *, many: bool = False) -> None:
        """If `tries` is true, step `states` with the executor first; see `try_elsewhere`."""
        if self.tries:
            try_elsewhere(self._executor, self._layout, states, actions, dt, many=many)

    def attempt_step(self, current: CurrentState, action: Any, state: Any, dt: int = 1) -> None:
        """Call `attempt` for `state`.

        If `state` is ``None``, call it for the current state, but only if the current state follows
        from a state that a caller gave.
        """
        if state is None and self.includes(current):
            state = current.get()
        if state is not None:
            self.attempt(state, [action], dt)

    def includes(self, current: CurrentState) -> bool:
        """Return whether the current state was reached from a state that a caller gave."""
        if self.elsewhere:
            return current.row is not None and current.row is self._held
        return current.started and current.given and not current.lost

    def hold(
        self, current: CurrentState, row: Row, image: Any = None, *, given: bool = True
    ) -> None:
        """Make `row` the current state, without using the simulator of this process."""
        self._held = row
        current.hold(row, image, given=given)

    def set(self, current: CurrentState, row: Row) -> None:
        """Make `row` the current state; raise the simulator's error if it rejects `row`."""
        if self.elsewhere:
            self._replace(current, row, "bring_back", (), {})
            self.hold(current, row.copy())
        else:
            current.set(row)

    def step(
        self,
        current: CurrentState,
        action: Any,
        dt: int,
        row: Row | None,
        *,
        autoreset: bool,
        **how: Any,
    ) -> Any:
        """Step as ``current.step`` does with these arguments, in a worker if necessary.

        A reset after the step is a call of its own, because `step_timeout` is no limit for resets.
        """
        if row is not None and self.elsewhere:
            how["autoreset"] = False
            result = self._replace(current, row, "step", (action, dt), how)
        elif self.elsewhere and self.includes(current):
            result = self.use(current, "step", action, dt, autoreset=False, **how)
        else:
            return current.step(action, dt, row, autoreset=autoreset, **how)
        if autoreset and (result.terminated or result.truncated):
            self.use(current, "reset", None, None, read=False, image=False)
        return result

    def use(self, current: CurrentState, method: str, *args: Any, **how: Any) -> Any:
        """Return ``current.method(*args, **how)``, called in a worker if necessary.

        Raises
        ------
        PoisonInputError, StepTimeoutError
            Workers died or hung in the call.
        Exception
            The exception that the method raised. If a worker called the method, the current state
            does not change.
        """
        if not (self.elsewhere and self.includes(current)):
            return getattr(current, method)(*args, **how)
        assert current.row is not None
        return self._call(
            current, current.row, current.kept_image, current.given, method, args, how
        )

    def _replace(self, current: CurrentState, row: Row, method: str, args: Any, how: Any) -> Any:
        """In a worker, call `method` with `row` as the current state; hold the resulting state.

        If the call raises, the current state is kept or lost as in `CurrentState.set`.
        """
        current.keep_episode()
        try:
            return self._call(current, row, None, True, method, args, how)
        except BaseException:
            current.drop()
            raise

    def _call(
        self,
        current: CurrentState,
        row: Row,
        image: Any,
        given: bool,
        method: str,
        args: Any,
        how: Any,
    ) -> Any:
        """Call `_use` in a worker, hold the resulting state, and return the method's result."""
        assert self._workers is not None
        result, row, image, given = self._workers.call(
            _use, row, image, given, method, args, how, is_step=method in _STEPS
        )
        self.hold(current, row, image, given=given)
        return result

    def view(self, stepper: RowStepper, rows: Row, *, single: bool) -> dict[str, NDArray[Any]]:
        """Return the named fields of rows like `RowStepper.view`, from a worker if necessary."""
        if not self.elsewhere:
            return stepper.view(rows, single=single)
        assert self._workers is not None
        found: dict[str, NDArray[Any]] = self._workers.call(_view, rows, single)
        for value in found.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        return found


def _use(
    env: HostedEnv, row: Row, image: Any, given: bool, method: str, args: Any, kwargs: Any
) -> tuple[Any, Row, Any, bool]:
    """Call `method` with `row` as the current state; runs in a worker, whose own state is kept.

    Return the result, and the row, image and ``given`` of the resulting state.
    """
    stepper: RowStepper = env.row_stepper
    with stepper.lock:
        stepper.current.set_aside()
        current = CurrentState(stepper.simulator, stepper.layout.format)
        current.hold(row, image, given=given)
        result = getattr(current, method)(*args, **kwargs)
        current.set_aside()
        assert current.row is not None
        return result, current.row, current.kept_image, current.given


def _view(env: HostedEnv, rows: Row, single: bool) -> dict[str, Any]:
    return env.row_stepper.view(rows, single=single)


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
