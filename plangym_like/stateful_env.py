"""`StatefulEnv`: the base of `PlanEnv`, with everything except stepping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like import state_files
from plangym_like.audit.auditor import EVERY, Auditor, check_audit
from plangym_like.errors import InputError
from plangym_like.execution.executor import Executor, ExecutorOptions
from plangym_like.execution.given_states import GivenStates
from plangym_like.execution.remote_calls import REMOTE_CALLS
from plangym_like.execution.serial_executor import SerialOptions
from plangym_like.layout import Layout
from plangym_like.row_stepper import RowStepper, closed, layout_of
from plangym_like.simulator import Simulator, name_of
from plangym_like.spaces import check_out_of_bounds
from plangym_like.states import HEADER_NBYTES, Row, States
from plangym_like.stats import Stats


class StatefulEnv:
    """The base of `PlanEnv`, with the same parameters and everything except stepping."""

    SINGLETON: ClassVar[bool] = False
    STATE_IS_ARRAY: ClassVar[bool] = True
    remote_calls: ClassVar[dict[str, Any]] = REMOTE_CALLS
    # How to make this environment in one process: ``(env_class, name, kwargs)``.
    recipe: tuple[Callable[..., Any], Any, dict[str, Any]] | None = None

    def __init__(
        self,
        simulator: Simulator | Callable[[], Simulator | StatefulEnv],
        executor: ExecutorOptions | None = None,
        *,
        name: Any = None,
        autoreset: bool = True,
        return_image: bool = False,
        audit: str = "raise",
        audit_every: int = EVERY,
        out_of_bounds: str = "pass",
        delay_setup: bool = False,
    ) -> None:
        check_audit(audit, audit_every)
        self.autoreset = autoreset
        self.return_image = return_image
        self._given_simulator = simulator
        self._name = getattr(simulator, "name", simulator) if name is None else name
        self._options: ExecutorOptions = SerialOptions() if executor is None else executor
        self._audit, self._audit_every = audit, audit_every
        self._out_of_bounds = check_out_of_bounds(out_of_bounds)
        # The arguments with which `clone` calls the class.
        self._arguments: dict[str, Any] = {
            "simulator": simulator,
            "executor": executor,
            "name": name,
            "autoreset": autoreset,
            "return_image": return_image,
            "audit": audit,
            "audit_every": audit_every,
            "out_of_bounds": out_of_bounds,
        }
        self._setup_lock = threading.RLock()
        self._stepper: RowStepper | None = None
        self._executor: Executor | None = None
        self._stats: Stats | None = None
        self._auditor: Auditor
        self._closed = False
        if not delay_setup:
            self.setup()

    def setup(self) -> None:
        """Make the simulator and the executor, unless they exist already."""
        if self._closed:
            raise closed(self.name)
        if self._stepper is not None:
            self._stepper.ensure_usable()
            return
        with self._setup_lock:
            if self._stepper is None:  # another thread may have made them meanwhile
                self._make()

    def _make(self) -> None:
        self._options.prepare()
        given = self._given_simulator
        with self._options.trials():
            made = given if isinstance(given, Simulator) else given()
        stepper = self._take_over(made) if isinstance(made, StatefulEnv) else self._wrap(made)
        try:
            self._use(stepper.layout, self._options.make(stepper))
            if not self._options.isolated:
                stepper.prepare()
        except BaseException:
            stepper.close()
            raise
        self._stepper = stepper

    def _take_over(self, other: StatefulEnv) -> RowStepper:
        """Use the simulator and options of `other`."""
        stepper = other.row_stepper
        self.autoreset, self.return_image = other.autoreset, other.return_image
        self._auditor = other._auditor
        return stepper

    def _wrap(self, sim: Simulator) -> RowStepper:
        layout = layout_of(sim, images=self.return_image, out_of_bounds=self._out_of_bounds)
        stepper = RowStepper(sim, layout, self.name)
        self._auditor = Auditor(
            layout,
            self.name,
            sim.state_difference,
            stepper.declare_approximate,
            mode=self._audit,
            every=self._audit_every,
            stats=Stats(),
            wrappers=sim.suspect_wrappers(),
        )
        return stepper

    def _use(self, layout: Layout, executor: Executor) -> None:
        """From now on, step batches with `executor`; `layout` describes their arrays."""
        self._layout = layout
        self._executor = executor
        self._auditor.stats = self._stats = executor.stats
        self._given = GivenStates(executor, layout)

    def _set_up_for_use(self) -> None:
        """Call `setup` in a property, where Python takes an `AttributeError` for a missing name."""
        try:
            self.setup()
        except AttributeError as error:
            raise RuntimeError(f"{self.name} could not be made: AttributeError: {error}") from error

    @property
    def row_stepper(self) -> RowStepper:
        """The object that steps rows in this process."""
        self._set_up_for_use()
        assert self._stepper is not None
        return self._stepper

    def __getstate__(self) -> dict[str, Any]:
        if self._closed or self._executor is not None:
            raise TypeError(
                f"{self!r} holds a simulator or is closed, and cannot be pickled or copied; use "
                "clone(), send its state rows, or make it with delay_setup=True and pickle it then"
            )
        return {name: value for name, value in vars(self).items() if name != "_setup_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _setup_lock=threading.RLock())

    def __repr__(self) -> str:
        workers = "" if self.n_workers is None else f", n_workers={self.n_workers}"
        return f"{type(self).__name__}({self.name!r}{workers})"

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # A property has raised an AttributeError, which Python hides; this raises it again.
            return object.__getattribute__(self, name)
        told = ""
        if not name.startswith("_") and not self.__dict__.get("_closed", True):
            if (stepper := self._stepper_of_attributes()) is None:
                told = "; it is made on first use, and its environment's attributes after setup()"
            elif name in stepper.simulator.shown_attributes:
                return getattr(self.simulator, name)
            elif stepper.simulator.env.has_wrapper_attr(name):
                return self.gym_env.get_wrapper_attr(name)
        kind = "closed 'PlanEnv'" if self.__dict__.get("_closed") else "'PlanEnv'"
        raise AttributeError(f"{kind} object has no attribute {name!r}{told}")

    def _stepper_of_attributes(self) -> RowStepper | None:
        """Return the stepper whose environment's attributes this env has, without making it."""
        return self._stepper

    # Parts

    @property
    def simulator(self) -> Simulator:
        """The simulator, in the env's current state."""
        stepper = self.row_stepper
        with stepper.lock:
            stepper.current.bring_back()
        self._auditor.forget()
        return stepper.simulator

    @property
    def executor(self) -> Executor:
        """The executor, which steps batches."""
        self._set_up_for_use()
        assert self._executor is not None
        return self._executor

    @property
    def batch_env(self) -> Any:
        """The executor, under plangym's name."""
        return self.executor

    @property
    def plan_env(self) -> Self:
        """This env itself; in plangym, `plan_env` is the environment in the calling process."""
        return self

    @property
    def unwrapped(self) -> Self:
        """This env itself, because wrappers are inside it."""
        return self

    @property
    def gym_env(self) -> gymnasium.Env[Any, Any]:
        """The wrapped Gymnasium environment, in the env's current state."""
        simulator = self.simulator
        simulator.hand_out()
        return simulator.env

    @property
    def layout(self) -> Layout:
        """The layout of this environment's batches."""
        self._set_up_for_use()
        return self._layout

    # Properties

    @property
    def name(self) -> str:
        """The id, or the name of the callable that made the environment."""
        return name_of(self._name)

    @property
    def n_workers(self) -> int | None:
        """The number of processes that step rows, this one included; ``None`` without workers."""
        return self._options.n_workers

    @property
    def isolate(self) -> bool:
        """Whether batches are stepped in other processes only."""
        return self._options.isolated

    @property
    def stats(self) -> Stats:
        """Counters of all batches so far; without workers, they remain after `close`."""
        if self._closed and self._stats and isinstance(self._options, SerialOptions):
            return self._stats
        return self.executor.stats

    @property
    def observation_space(self) -> Space[Any]:
        """The space of single observations."""
        return self.layout.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """The space of single actions."""
        return self.layout.action_space

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation."""
        return self.observation_space.shape

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """The shape of one action."""
        return self.action_space.shape

    @property
    def state_nbytes(self) -> int:
        """Bytes in one state row."""
        return self.layout.format.state_nbytes

    @property
    def frameskip(self) -> int | tuple[int, int]:
        """Frames per action; a pair ``(low, high)`` if the number is drawn at random."""
        return self.row_stepper.simulator.frameskip

    @property
    def exactness(self) -> str:
        """``"exact"`` if restored states continue bit-identically, otherwise ``"approximate"``."""
        return self.row_stepper.simulator.exactness

    @property
    def exactness_note(self) -> str:
        """Why `exactness` has its value."""
        return self.row_stepper.simulator.exactness_note

    @property
    def snapshot(self) -> str:
        """How states are saved: ``"native"``, ``"pickle"`` or ``"replay"``."""
        return self.row_stepper.simulator.snapshot

    @property
    def snapshot_note(self) -> str:
        """Why states are saved by the method `snapshot`."""
        return self.row_stepper.simulator.snapshot_note

    # States

    def get_state(self) -> Row:
        """Return the current state as a new row ``(state_nbytes,) uint8``."""
        stepper = self.row_stepper
        with stepper.lock:
            self._start(stepper)
            return stepper.current.get()

    def view_state(self, states: States) -> dict[str, NDArray[Any]]:
        """Return the named fields of a state row as read-only arrays; ``(N, ...)`` for N rows."""
        stepper = self.row_stepper
        self._given.attempt(states, many=True)
        rows = self._layout.format.check(states)
        return self._given.view(stepper, rows, single=np.ndim(states) == 1)

    def make_state(self, state: Row | None = None, **physics: Any) -> Row:
        """Return a new row made from physical quantities; the current state does not change.

        Parameters
        ----------
        state : row, optional
            The state to copy and change; by default the current one. All other data are kept.
        physics
            The quantities that the family supports, such as ``x=`` in classic control.
        """
        stepper, state_format = self.row_stepper, self._layout.format
        with stepper.lock:
            row = self.get_state() if state is None else state_format.check(state)[0].copy()
            stepper.simulator.build_state(row[HEADER_NBYTES:], **physics)
            state_format.seal(row[None])
            return row

    def save_states(self, path: str | PathLike[str], states: States) -> None:
        """Write state rows to a file, with a digest."""
        state_format = self.layout.format
        state_files.save(path, state_format, state_format.check(states))

    def load_states(self, path: str | PathLike[str]) -> Row:
        """Read the rows ``(N, state_nbytes)`` of a file that `save_states` wrote.

        Raises
        ------
        StateError
            The file is damaged, truncated, or belongs to another environment.
        """
        return state_files.load(path, self.layout.format)

    def get_image(self) -> NDArray[np.uint8]:
        """Return an image ``(height, width, 3) uint8`` of the current state, in any render mode."""
        stepper = self.row_stepper
        with stepper.lock:
            self._start(stepper)
            image: NDArray[np.uint8] = self._given.use(stepper.current, "image")
            return image

    @property
    def img_shape(self) -> tuple[int, ...]:
        """The shape of the images that `get_image` returns."""
        return self.get_image().shape

    def sample_action(self) -> Any:
        """Return a random action."""
        return self.action_space.sample()

    def _start(self, stepper: RowStepper) -> None:
        """Start an episode if there is no current state; raise `StateLostError` if it was lost."""
        current = stepper.current
        if not current.started or current.lost:
            current.check(self.name)
            current.reset(None, None, read=False, image=False)

    # Closing

    def close(self) -> None:
        """Close processes and simulator; results already returned stay valid.

        May be called again.
        """
        self._closed = True
        executor, self._executor = self._executor, None
        stepper, self._stepper = self._stepper, None
        if executor is not None:
            executor.close()
        if stepper is not None:
            stepper.close()

    def clone(self, **changed: Any) -> Self:
        """Return another env made with the same arguments, updated with `changed`.

        It is in the same state, unless the state formats differ or one of the two is not set up.
        """
        arguments = {**self._arguments, **changed}
        if isinstance(arguments.get("simulator"), Simulator):
            raise InputError("a clone would share the simulator: make the env from a callable")
        other = type(self)(**arguments)
        mine, theirs = self._stepper, other._stepper
        if mine is None or theirs is None or mine.layout.format != theirs.layout.format:
            return other
        try:
            if mine.current.started and mine.refusal is None:
                given = mine.current.given or self._given.includes(mine.current)
                other._set(self.get_state(), given=given)
        except BaseException:
            other.close()
            raise
        return other

    def _set(self, state: Row, *, given: bool) -> None:
        """Make `state` the current state; `given` says whether it comes from a caller."""
        stepper = self.row_stepper
        if given:
            self._given.attempt(state)
        row = self._layout.format.check_row(state)
        with stepper.lock:
            if given:
                self._given.set(stepper.current, row)
            else:
                stepper.current.set(row, given=False)

    def sync_states(self, state: Row | None = None, blocking: bool = True) -> None:
        """Make `state` the current state, as `set_state` does; workers do not hold states."""
        del blocking
        if state is not None:
            self._set(state, given=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
