"""`RowStepper`: a simulator in this process that steps rows of batches, and its current state."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Executor, Inputs, Rows, SubmitOptions, dt_of, put_outcome
from plangym_like.batch.layout import Layout
from plangym_like.batch.ownership import owned, owned_info
from plangym_like.batch.simulator import EnvStep, Simulator, no_simulator
from plangym_like.errors import ClosedError, InputError, RowExitError, StateLostError
from plangym_like.results import Future, Stats, Step, Transition
from plangym_like.states.rows import HEADER_NBYTES, Row, StateFormat
from plangym_like.support.fork_safety import new_lock


class CurrentState:
    """The current state of an environment, kept in its simulator or set aside as a row.

    Parameters
    ----------
    simulator : Simulator
    state_format : StateFormat
        The format of the environment's state rows.

    Attributes
    ----------
    row : array ``(state_nbytes,) uint8`` or None
        The current state if it is set aside; ``None`` while it is in the simulator.
    started : bool
        Whether there is a current state: the environment was reset, or a state was set.
    lost : bool
        Whether the current state is lost, because a call that should have replaced it raised an
        error.
    in_use : threading.Lock
        Held while the simulator is used; see `not_in_use`.
    is_quick : bool
        Whether the simulator has a fast path for single rows; see `Simulator.step_row`.
    """

    def __init__(self, simulator: Simulator, state_format: StateFormat) -> None:
        self._simulator = simulator
        self._format = state_format
        self.in_use = threading.Lock()
        self.row: Row | None = None
        self.started = False
        self.lost = False
        self.is_quick = type(simulator).step_row is not Simulator.step_row

    def check(self, name: str) -> None:
        """Raise `StateLostError` if the current state of the environment `name` is lost."""
        if self.lost:
            raise StateLostError(
                f"the current state of {name!r} is lost, because a call that should have replaced "
                "it raised; reset the environment or set a state"
            )

    # Reading and setting aside

    def read(self) -> Row:
        """Return the simulator's state as a new row."""
        state_format = self._format
        row: Row = np.empty(state_format.state_nbytes, np.uint8)
        row[:HEADER_NBYTES] = state_format.header_bytes
        self._simulator.save(row)
        state_format.seal_row(row)
        return row

    def get(self) -> Row:
        """Return the current state as a new row."""
        if self.row is not None:
            return self.row.copy()
        with not_in_use(self.in_use):
            return self.read()

    def set_aside(self) -> None:
        """Keep the current state as a row, so that the simulator can be used for other states."""
        if self.row is None and self.started and not self.lost:
            self.row = self.read()

    def bring_back(self) -> None:
        """Restore the current state in the simulator if it was set aside."""
        if self.row is not None:
            with not_in_use(self.in_use):
                self._restore()
                self.row = None

    def image(self) -> Any:
        """Return a copy of the current state's image."""
        with not_in_use(self.in_use):
            self._restore()
            self.row = None
            return owned(self._simulator.image())

    def _restore(self) -> None:
        """If the current state is set aside, restore it; keep `row` in case a later call raises."""
        if self.row is not None:
            self._simulator.write(self.row[HEADER_NBYTES:])

    # Replacing the current state

    def set(self, row: Row) -> None:
        """Make `row` the current state.

        If the simulator rejects `row`, the current state is lost.
        """
        with not_in_use(self.in_use):
            self._drop()
            self._simulator.write(row[HEADER_NBYTES:])
            self._begin()

    def step_env(self, action: Any) -> EnvStep:
        """Step from the current state as ``env.step`` does; the next state becomes current.

        Returns
        -------
        EnvStep
            Observation and info are copies.
        """
        with not_in_use(self.in_use):
            if self.row is not None:
                self._restore()
            simulator = self._simulator
            if simulator.steps_env_alone:
                obs, reward, terminated, truncated, info = simulator.env.step(action)
            else:
                obs, reward, terminated, truncated, info, _ = simulator.step(action, 1)
            self.row = None
            return owned(obs), reward, terminated, truncated, owned_info(info)

    def step(
        self,
        action: Any,
        dt: int,
        row: Row | None = None,
        *,
        read: bool,
        image: bool,
        autoreset: bool,
    ) -> Transition | Step:
        """Step from `row`, or from the current state, and make the next state the current one.

        Parameters
        ----------
        action, dt, row
            Checked arguments; the action is a copy, which the environment may change.
        read : bool
            Whether to return the next state.
        image : bool
            Whether to put an image of the next state into the info.
        autoreset : bool
            Whether to start the next episode if this one has ended.

        Raises
        ------
        Exception
            Any error of the environment. If `row` is given, the current state is then lost: to set
            it aside before every step would slow down a search. It is not lost by an `InputError`
            of `Simulator.step_row`.
        """
        with not_in_use(self.in_use):
            sim = self._simulator
            if self.is_quick and row is not None and read and not image:
                result = self._step_quickly(row, action, dt, autoreset=autoreset)
                if result is not None:
                    return result
            if row is None:
                self._restore()
                obs, reward, terminated, truncated, info, frames = sim.step(action, dt)
                self.row = None
            else:
                self._drop()
                sim.write(row[HEADER_NBYTES:])
                obs, reward, terminated, truncated, info, frames = sim.step(action, dt)
                self._begin()
            # Copied now, because the next use of the simulator may change these objects.
            obs, info = owned(obs), owned_info(info)
            info["n_step"], info["dt"] = frames, dt
            if image:
                info["rgb"] = owned(sim.image())
            fresh = self.read() if read else None
            if autoreset and (terminated or truncated):
                self.restart()
            if fresh is None:
                return Step(obs, reward, terminated, truncated, info)
            return Transition(fresh, obs, reward, terminated, truncated, info)

    def _step_quickly(
        self, row: Row, action: Any, dt: int, *, autoreset: bool
    ) -> Transition | None:
        """Step from `row` with the simulator's fast path; return ``None`` if there is none."""
        simulator = self._simulator
        try:
            found = simulator.step_row(row, action, dt)
        except InputError:
            raise  # before anything has changed
        except BaseException:
            self._drop()
            raise
        if found is None:
            return None
        fresh, (obs, reward, terminated, truncated, info, frames) = found
        if self._format.checksum:
            self._format.seal_row(fresh)
        info["n_step"], info["dt"] = frames, dt
        self._begin()
        if not simulator.step_row_moves:
            self.row = fresh.copy()
        if autoreset and (terminated or truncated):
            self._restore()
            self.restart()
        return Transition(fresh, obs, reward, terminated, truncated, info)

    def reset(
        self, seed: int | None, options: dict[str, Any] | None, *, read: bool, image: bool
    ) -> tuple[Row | None, Any, dict[str, Any]]:
        """Start an episode; return its first state (``None`` unless `read`), observation and info.

        The random generator and the wrappers continue from the current state. If there is no
        current state, they start as in a new simulator. If the current state cannot be restored, a
        new random generator is used. If the reset raises, the current state is unchanged.
        """
        if options is not None and not isinstance(options, Mapping):
            raise InputError(f"options must be a dict or None, got {options!r}")
        with not_in_use(self.in_use):
            self._prepare_reset()
            simulator = self._simulator
            try:
                obs, info = simulator.reset(seed, owned(options))
                obs, info = owned(obs), owned_info(info)
                if image:
                    info["rgb"] = owned(simulator.image())
                row = self.read() if read else None
            except BaseException:
                self.fail()
                raise
            self._begin()
            return row, obs, info

    def restart(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; the current state must be in the simulator.

        If the reset raises, the current state is lost. Observation and info are not copied.
        """
        self._drop()
        result = self._simulator.reset(seed, options)
        self._begin()
        return result

    def fail(self) -> None:
        """Mark the current state as lost, unless it is set aside; called after an error."""
        self.lost = self.started and self.row is None

    def _drop(self) -> None:
        """Mark the current state as lost, until `_begin` is called."""
        self.row = None
        self.lost = self.started

    def _begin(self) -> None:
        self.row = None
        self.started, self.lost = True, False

    def _prepare_reset(self) -> None:
        if self.started and not self.lost:
            if self.row is None:
                # A state that no longer fits its row cannot be kept, but a reset may replace it.
                with contextlib.suppress(Exception):
                    self.set_aside()
                return
            # A state that cannot be restored must not prevent a reset.
            with contextlib.suppress(Exception):
                self._restore()
                return
        self._simulator.renew()


class RowStepper:
    """Steps rows of checked batches in one simulator, without changing its current state.

    This is the executor of an environment without workers. Other executors, workers and Ray nodes
    step batches only through `run_rows`.

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
    closed : bool
        Whether the simulator is closed.
    hosted : bool
        Whether this process is a worker. Exceptions of rows that would end the program, such as
        ``SystemExit``, are then replaced by `RowExitError`.
    stats : Stats
        Counters of all batches so far.
    """

    isolated = False

    def __init__(self, simulator: Simulator, layout: Layout, name: str) -> None:
        self.simulator = simulator
        self.layout = layout
        self.name = name
        self.current = CurrentState(simulator, layout.format)
        self.lock = new_lock()
        self.closed = self.hosted = False
        self.stats = Stats()

    def for_audits(self) -> RowStepper:
        """Return a stepper with a copy of the simulator, or this stepper if there is no copy.

        Audits step rows again in the copy. If states lack some of the simulator's data, the copy
        may hold other values for it, and the results differ.
        """
        with self.lock:
            self.ensure_open()
            return self._audit_copy or self

    @cached_property
    def _audit_copy(self) -> RowStepper | None:
        copy = self.simulator.copy_for_audits()
        return None if copy is None else RowStepper(copy, self.layout, self.name)

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch in this process; see `Executor.submit`."""
        layout = self.layout
        layout.verify(inputs)
        if not options.blocking:
            return Future.of(partial(self.submit, inputs, options._replace(blocking=True)))
        stepper = self.for_audits() if options.audit else self
        begun = time.perf_counter()
        rows = layout.allocate(inputs, states=options.states, observations=options.observations)
        errors = stepper.run_rows(rows, 0, inputs.count, masked=options.masked)
        result = layout.result(rows, errors)
        if not options.audit:
            self.stats.seconds_here += time.perf_counter() - begun
        return result

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return `Simulator.state_difference` of two payloads."""
        return self.simulator.state_difference(one, other)

    def takes_threads(self, inputs: Inputs) -> bool:
        """Return whether this process can step `inputs` on several threads."""
        with self.lock:
            self.ensure_open()
            with not_in_use(self.current.in_use):
                if self.current.row is None:
                    self.current.set_aside()
                has_images = not inputs.horizon and "rgb" in self.layout.columns
                return not has_images and self.simulator.takes_threads(inputs)

    def run_rows(
        self, rows: Rows, start: int, stop: int, *, masked: bool = False
    ) -> dict[int, Exception] | None:
        """Step the rows ``start:stop`` of a checked batch, and write their results into `rows`.

        If `masked` is true, all rows are stepped, and the exceptions of failed rows are returned
        by row index. Otherwise the first exception is raised.
        """
        if masked:
            return self._run_rows_apart(rows, start, stop)
        with self.lock:
            self.ensure_open()
            with not_in_use(self.current.in_use):
                if start < stop:
                    self._run_range(rows, start, stop)
        return None

    def _run_range(self, rows: Rows, start: int, stop: int) -> None:
        # A separate method keeps `run_rows` short. Without free memory, CPython before 3.14 hangs
        # when it leaves a `with` block late in a long function; the lock would stay locked.
        sim, state_format = self.simulator, self.layout.format
        if self.current.row is None:
            self.current.set_aside()
        fresh = None if rows.next_states is None else rows.next_states[start:stop]
        rows.cursor[0] = start
        try:
            if stop - start > 1 or not self._step_row(rows, start):
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
        if inputs.horizon or inputs.seeds is not None or "rgb" in rows.columns:
            return False
        state = inputs.states[0 if len(inputs.states) == 1 else index]
        found = sim.step_row(state, owned(inputs.actions[index]), dt_of(inputs, index))
        if found is None:
            return False
        rows.next_states[index], outcome = found
        put_outcome(rows, index, sim.observation_space, outcome)
        return True

    def _run_rows_apart(self, rows: Rows, start: int, stop: int) -> dict[int, Exception]:
        failure = None
        try:
            self.run_rows(rows, start, stop)
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
        lower = self._run_rows_apart(rows, start, middle)
        return lower | self._run_rows_apart(rows, middle, stop)

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

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise closed(self.name)

    def close(self) -> None:
        """Close the simulator; safe to call more than once."""
        if not self.closed:
            self.closed = True
            copy = vars(self).get("_audit_copy")
            if copy is not None:
                copy.close()
            self.simulator.close()


class ExecutorOptions(Protocol):
    """The picklable options of an executor; call `make` to create the executor."""

    @property
    def n_workers(self) -> int | None:
        """The number of processes that step rows.

        ``None`` means only this process, or, on a Ray cluster, one process per core.
        """

    @property
    def isolated(self) -> bool:
        """Whether only other processes step rows."""

    def make(self, make_stepper: Callable[[], RowStepper]) -> Executor:
        """Make the executor; `make_stepper` makes the simulator of this process, and its stepper.

        Processes are started before, so that they import modules meanwhile.
        """


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
        plays_out=sim.plays_out,
        game=sim.game,
        out_of_bounds=out_of_bounds,
    )


def closed(name: str) -> ClosedError:
    """Return the error to raise if the environment `name` is used after it was closed."""
    return ClosedError(f"the environment {name} has been closed: make another one")


def not_in_use(mark: threading.Lock) -> threading.Lock:
    """Return the lock `mark`, which the caller holds while it uses the object.

    Call this only while holding the object's re-entrant lock, so that no other thread has `mark`.

    Raises
    ------
    RuntimeError
        The object is in use.
    """
    if mark.locked():
        raise RuntimeError(
            "an environment was used while it was already in use: a signal handler, or code that "
            "one of its methods was running, called it again; set a flag in the handler instead, "
            "or use a clone of the environment there. If this process was forked while another "
            "thread used the environment, make another one"
        )
    return mark
