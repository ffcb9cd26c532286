"""`EnvParts`: the simulator and the executor of a `PlanEnv`, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import gymnasium
from gymnasium.spaces import Space

from plangym_like.batch.arrays import Executor
from plangym_like.batch.layout import OUT_OF_BOUNDS, Layout
from plangym_like.batch.row_stepper import ExecutorOptions, RowStepper, closed, layout_of
from plangym_like.batch.simulator import Simulator
from plangym_like.results import ResetResult, Stats, Transition
from plangym_like.support.arguments import Repeatable, check_choice, name_of
from plangym_like.support.fork_safety import new_lock

# Held while a delayed environment is made. It is one lock for all of them, because an environment
# that has a lock cannot be pickled.
_first_use = new_lock()


class EnvParts(Repeatable):
    """Makes a simulator and an executor, at once or on first use, and closes them.

    It is the base class of `PlanEnv`, which documents the parameters.
    """

    # How to make this environment in one process: ``(env_class, name, kwargs)``.
    recipe: tuple[Callable[..., Any], Any, dict[str, Any]] | None = None
    # Which rows are stepped a second time; see `PlanEnv`.
    _audit: str
    _audit_every: int

    def __init__(
        self,
        simulator: Simulator | Callable[[], Simulator | EnvParts],
        executor: ExecutorOptions | None = None,
        *,
        name: Any = None,
        autoreset: bool = True,
        return_image: bool = False,
        out_of_bounds: str = "pass",
        delay_setup: bool = False,
    ) -> None:
        check_choice("out_of_bounds", out_of_bounds, OUT_OF_BOUNDS)
        self.autoreset = autoreset
        self.return_image = return_image
        self._given_simulator = simulator
        self._name = getattr(simulator, "name", simulator) if name is None else name
        self._options = executor
        self._out_of_bounds = out_of_bounds
        self._stepper: RowStepper | None = None
        self._executor: Executor | None = None
        self._stats: Stats | None = None
        self._closed = False
        # The last result of `reset` or `step` that holds a state; for planners, because a state row
        # does not say which actions are legal.
        self.last_result: ResetResult | Transition | None = None
        if not delay_setup:
            self._make()

    def setup(self) -> None:
        """Make the simulator and the executor, unless they exist already."""
        if self._closed:
            raise closed(self.name)
        if self._stepper is not None:
            self._stepper.ensure_open()
            return
        with _first_use:
            if self._stepper is None:
                self._make()

    def _make(self) -> None:
        made: list[RowStepper] = []
        try:
            make_stepper = partial(self._make_stepper, made)
            executor = self._options.make(make_stepper) if self._options else make_stepper()
        except BaseException:
            for stepper in made:
                stepper.close()
            raise
        (stepper,) = made
        self._layout, self._stats = stepper.layout, executor.stats
        self._executor, self._stepper = executor, stepper

    def _make_stepper(self, made: list[RowStepper]) -> RowStepper:
        """Make the simulator; append its stepper to `made`, and return it."""
        given = self._given_simulator
        simulator = given if isinstance(given, Simulator) else given()
        if isinstance(simulator, EnvParts):  # its simulator is used, with its options
            env = simulator
            env.setup()
            assert env._stepper is not None
            made.append(env._stepper)
            self.autoreset, self.return_image = env.autoreset, env.return_image
            self._audit, self._audit_every = env._audit, env._audit_every
            if self._name is given:
                self._name = env._name
        else:
            bounds = self._out_of_bounds
            layout = layout_of(simulator, images=self.return_image, out_of_bounds=bounds)
            made.append(RowStepper(simulator, layout, self.name))
        return made[0]

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
        return vars(self)

    def __repr__(self) -> str:
        workers = "" if self.n_workers is None else f", n_workers={self.n_workers}"
        return f"{type(self).__name__}({self.name!r}{workers})"

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            # A property has raised an AttributeError, which Python hides; this raises it again.
            return object.__getattribute__(self, name)
        told = ""
        if not name.startswith("_") and not self.__dict__.get("_closed", True):
            if (stepper := self._stepper) is None:
                told = "; it is made on first use, and its environment's attributes after setup()"
            elif stepper.simulator.env.has_wrapper_attr(name):
                return self.gym_env.get_wrapper_attr(name)
        kind = "closed 'PlanEnv'" if self.__dict__.get("_closed") else "'PlanEnv'"
        raise AttributeError(f"{kind} object has no attribute {name!r}{told}")

    @property
    def simulator(self) -> Simulator:
        """The simulator, in the env's current state."""
        stepper = self.row_stepper
        with stepper.lock:
            stepper.current.bring_back()
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
    def unwrapped(self) -> Self:
        """This env itself, because wrappers are inside it."""
        return self

    @property
    def gym_env(self) -> gymnasium.Env[Any, Any]:
        """The wrapped Gymnasium environment, in the env's current state."""
        return self.simulator.env

    @property
    def layout(self) -> Layout:
        """The layout of this environment's batches."""
        self._set_up_for_use()
        return self._layout

    @property
    def name(self) -> str:
        """The id, or the name of the callable that made the environment."""
        return name_of(self._name)

    @property
    def n_workers(self) -> int | None:
        """The number of processes that step rows, this one included; ``None`` without workers."""
        return None if self._options is None else self._options.n_workers

    @property
    def isolate(self) -> bool:
        """Whether batches are stepped in other processes only."""
        return self._options is not None and self._options.isolated

    @property
    def stats(self) -> Stats:
        """Counters of all batches so far; rows that workers step are counted when their batch ends.

        They remain after `close`.
        """
        if self._closed and self._stats is not None:
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

    # Closing

    def close(self) -> None:
        """Close processes and simulator; results already returned stay valid.

        May be called again.
        """
        self._closed = True
        parts = self._executor, self._stepper
        self._executor = self._stepper = None
        for part in parts:
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
