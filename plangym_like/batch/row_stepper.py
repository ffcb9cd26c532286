"""`RowStepper`: a simulator in this process that steps rows of batches."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows, dt_of
from plangym_like.batch.current_state import CurrentState, not_in_use
from plangym_like.batch.layout import Layout
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import Simulator, no_simulator
from plangym_like.errors import ClosedError, RowExitError
from plangym_like.states.rows import HEADER_NBYTES, Row, StateFormat
from plangym_like.support.fork_safety import new_lock


class RowStepper:
    """Steps rows of checked batches in one simulator, without changing its current state.

    Executors, workers and Ray nodes step batches only through `run_rows`.

    Parameters
    ----------
    simulator : Simulator
    layout : Layout
        The layout of the simulator's batches.
    name : str
        The name of the environment in messages.

    Attributes
    ----------
    current : CurrentState
        The current state of the environment, and single steps from it.
    lock : threading.RLock
        Held while the simulator is used.
    refusal : ClosedError or None
        The error that says why the simulator can no longer be used; ``None`` if it can be used.
    hosted : bool
        Whether this process is a worker. Exceptions of rows that would end the program, such as
        ``SystemExit``, are then replaced by `RowExitError`.
    """

    def __init__(self, simulator: Simulator, layout: Layout, name: str) -> None:
        self.simulator = simulator
        self.layout = layout
        self.name = name
        self.current = CurrentState(simulator, layout.format)
        self.lock, self._owner_pid = new_lock(), os.getpid()
        self.refusal: ClosedError | None = None
        self.hosted = False
        self._audit_copy: RowStepper | None = None
        self._has_tried_to_copy = False

    def for_audits(self) -> RowStepper:
        """Return a stepper with a copy of the simulator, or this stepper if there is no copy.

        Audits step rows again in the copy. If states lack some of the simulator's data, the copy
        may hold other values for it, and the results differ.
        """
        with self.lock:
            self.ensure_usable()
            if not self._has_tried_to_copy:
                self._has_tried_to_copy = True
                copy = self.simulator.copy_for_audits()
                if copy is not None:
                    copy.outside = self.simulator.outside
                    self._audit_copy = RowStepper(copy, self.layout, self.name)
            return self._audit_copy or self

    def prepare(self) -> None:
        """Do what would otherwise slow down the first batch."""
        with self.lock:
            self.simulator.prepare()

    def run_rows(
        self, rows: Rows, start: int, stop: int, *, masked: bool = False, audit: bool = False
    ) -> dict[int, Exception] | None:
        """Step the rows ``start:stop`` of a checked batch, and write their results into `rows`.

        If `masked` is true, all rows are stepped, and the exceptions of failed rows are returned
        by row index. Otherwise the first exception is raised. If `audit` is true, values of classes
        and modules are as they were when the environment was made; see `OutsideValues`.
        """
        if masked:
            return self._run_rows_apart(rows, start, stop, audit)
        with self.lock:
            self.ensure_usable()
            with not_in_use(self.current.in_use):
                self.current.set_aside()
                if start < stop and audit:
                    with self._as_made():
                        self._run_range(rows, start, stop)
                elif start < stop:
                    self._run_range(rows, start, stop)
        return None

    def _as_made(self) -> contextlib.AbstractContextManager[Any]:
        outside = self._outside
        return contextlib.nullcontext() if outside is None else outside.as_before()

    @property
    def _outside(self) -> Any:
        # A replayed environment keeps live copies, which may hold objects of a cache.
        return None if self.simulator.snapshot == "replay" else self.simulator.outside

    def outside_cause(self, inputs: Inputs) -> str:
        """Return a sentence that names the class attributes and globals that `inputs` depend on.

        If the steps do not show which values they depend on, the sentence names those that have
        changed since the environment was made. It is empty if there are none.
        """
        outside = self._outside
        if outside is None:
            return ""

        def run() -> Any:
            rows = self.layout.allocate(inputs, states=False, observations=True)
            if self.run_rows(rows, 0, inputs.count, masked=True):
                return None
            parts = rows.observations, rows.rewards, rows.terminateds, rows.truncateds
            return owned((*parts, rows.columns, rows.infos))

        with self.lock:
            return str(outside.cause(run) or outside.suspicion())

    def _run_range(self, rows: Rows, start: int, stop: int) -> None:
        # A separate method keeps `run_rows` short. Without free memory, CPython before 3.14 hangs
        # when it leaves a `with` block late in a long function; the lock would stay locked.
        sim, state_format = self.simulator, self.layout.format
        fresh = None if rows.next_states is None else rows.next_states[start:stop]
        rows.cursor[0] = start
        try:
            if rows.inputs.horizon:
                sim.rollout_rows(rows, start, stop)
            elif stop - start > 1 or not self._step_row(rows, start):
                sim.step_rows(rows, start, stop)
        except BaseException as error:
            self._raise_in_row(error, rows)
        if fresh is not None:
            state_format.seal(fresh)

    def _step_row(self, rows: Rows, index: int) -> bool:
        """Step one row with the simulator's fast path; return False if there is none."""
        inputs, sim = rows.inputs, self.simulator
        if not self.current.is_quick or rows.next_states is None:
            return False
        if inputs.seeds is not None or "rgb" in rows.columns:
            return False
        state = inputs.states[0 if len(inputs.states) == 1 else index]
        found = sim.step_row(state, owned(inputs.actions[index]), dt_of(inputs, index))
        if found is None:
            return False
        rows.next_states[index], outcome = found
        sim.put_outcome(rows, index, outcome)
        return True

    def _run_rows_apart(
        self, rows: Rows, start: int, stop: int, audit: bool
    ) -> dict[int, Exception]:
        failure = None
        try:
            self.run_rows(rows, start, stop, audit=audit)
        except Exception as error:
            failure = error
        if failure is None:
            return {}
        if start == stop:
            raise failure
        if stop - start == 1:
            return {start: failure}
        # A family may step many rows at once, and finish none of them if one raises.
        middle = (start + stop) // 2
        lower = self._run_rows_apart(rows, start, middle, audit)
        return lower | self._run_rows_apart(rows, middle, stop, audit)

    def _raise_in_row(self, error: BaseException, rows: Rows) -> NoReturn:
        """Raise the error of a row, with a note that names the row."""
        row, count = int(rows.cursor[0]), rows.inputs.count
        raised = error
        if self.hosted and not isinstance(error, Exception):
            raised = row_exit(error)
        raised.add_note(f"(in row {row} of a batch of {count})")
        raise raised

    def view(self, rows: Row, *, single: bool) -> dict[str, NDArray[Any]]:
        """Return the named fields of checked rows ``(N, state_nbytes)``, read-only.

        If `single` is true, return the fields of the first row, without the leading axis.
        """
        with self.lock:
            fields = self.simulator.view(rows[:, HEADER_NBYTES:])
        named = {name: (column[0] if single else column) for name, column in fields.items()}
        for name, value in named.items():
            if isinstance(value, np.ndarray):
                # A NumPy view could be made writable again, and would change with the rows.
                named[name] = value.copy()
                named[name].flags.writeable = False
        return named

    def declare_approximate(self, note: str) -> None:
        """Mark the environment as approximate, and warn, because an audit found a difference."""
        self.simulator.exactness, self.simulator.exactness_note = "approximate", note
        warnings.warn(note, RuntimeWarning, stacklevel=4)

    def ensure_usable(self) -> None:
        """Raise `ClosedError` if the simulator is closed, or was in use when a fork copied it."""
        if self.current.in_use.locked() and os.getpid() != self._owner_pid:
            self.refusal = self.refusal or ClosedError(
                f"the environment {self.name} was in use by another thread when this process was "
                "forked, so its simulator may be half-way through a step here: clone it or make "
                "another one"
            )
        if self.refusal is not None:
            raise ClosedError(str(self.refusal))

    @property
    def usable(self) -> bool:
        """Whether `ensure_usable` raises no error."""
        with contextlib.suppress(ClosedError):
            self.ensure_usable()
        return self.refusal is None

    def close(self) -> None:
        """Close the simulator; safe to call more than once."""
        if self.usable:  # otherwise, closing it could block
            self.refusal = closed(self.name)
            if self._audit_copy is not None:
                self._audit_copy.close()
            self.simulator.close()


def row_exit(error: BaseException) -> RowExitError:
    """Return the error that replaces `error`, which would end the program."""
    found = RowExitError(
        f"the environment raised {error!r} in a worker; that would end the program, so this error "
        "is raised instead. An environment should end an episode by its flags and raise an "
        "ordinary exception for a failure"
    )
    found.__cause__ = error
    return found


def layout_of(sim: Simulator, *, images: bool, out_of_bounds: str) -> Layout:
    """Return the layout of a simulator's batches; if `images` is true, infos hold images.

    Raises
    ------
    InputError
        `sim` is not a `Simulator`.
    """
    if not isinstance(sim, Simulator):
        raise no_simulator(sim)
    columns = dict(sim.columns)
    if images:
        columns["rgb"] = (sim.image().shape, np.dtype(np.uint8))
    state_format = StateFormat(
        sim.family,
        sim.fingerprint_fields(),
        sim.payload_nbytes,
        checksum=sim.checksum,
        variable=sim.variable,
    )
    return Layout(
        sim.observation_space,
        sim.action_space,
        state_format,
        columns,
        plain_infos=sim.plain_infos,
        exact=sim.exactness == "exact",
        out_of_bounds=out_of_bounds,
    )


def closed(name: str) -> ClosedError:
    """Return the error to raise if the environment `name` is used after it was closed."""
    return ClosedError(f"the environment {name} has been closed: make another one")
