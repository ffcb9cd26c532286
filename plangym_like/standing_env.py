"""`StandingEnv`: a simulator that stands in a current state and is stepped from it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.audit.auditor import EVERY, Auditor, check_audit
from plangym_like.batches import Layout, check_dt
from plangym_like.current_state import CurrentState
from plangym_like.errors import ClosedError, InputError
from plangym_like.fork_safety import forget_after_fork, held_by_lost_thread
from plangym_like.ownership import owned, owned_info
from plangym_like.simulator import Outcome, Simulator
from plangym_like.spaces import as_actions, check_out_of_bounds
from plangym_like.states import Row, StateFormat
from plangym_like.stats import Stats
from plangym_like.transitions import ResetObservation, ResetResult, Step, Transition

# Options that concern the environment and not its simulator.
_OWN_OPTIONS = ("autoreset", "return_image", "audit", "audit_every", "out_of_bounds")


class StandingEnv:
    """What `PlanEnv` is before batches: see there for the parameters.

    While a batch uses the simulator, the current state is set aside (see `CurrentState`).
    Observations and infos may be the simulator's own, so they are copied before they are returned.
    """

    simulator_class: ClassVar[Callable[..., Simulator]]
    SINGLETON: ClassVar[bool] = False
    STATE_IS_ARRAY: ClassVar[bool] = True

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        frameskip: int | tuple[int, int] | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        *,
        return_image: bool = False,
        audit: str = "raise",
        audit_every: int = EVERY,
        out_of_bounds: str = "pass",
        **simulator_kwargs: Any,
    ) -> None:
        if return_image and simulator_kwargs.get("render_mode") != "rgb_array":
            raise InputError("return_image=True needs render_mode='rgb_array'")
        check_audit(audit, audit_every)
        self._name = name
        self._kwargs: dict[str, Any] = {
            "frameskip": frameskip,
            "autoreset": autoreset,
            "return_image": return_image,
            "audit": audit,
            "audit_every": audit_every,
            "out_of_bounds": check_out_of_bounds(out_of_bounds),
            **simulator_kwargs,
        }
        self.autoreset = autoreset
        self.return_image = return_image
        self._sim: Simulator | None = None
        self._stats = Stats()
        self._closed = self._torn = False
        if not delay_setup:
            self.setup()

    def setup(self) -> None:
        """Make the simulator, unless that has been done already."""
        if self._torn:
            raise ClosedError(
                f"the environment {self.name} was in use by another thread when this process was "
                "forked, so its simulator may be half-way through a step here: clone it or make "
                "another one"
            )
        if self._closed:
            raise closed(self._name)
        if self._sim is not None:
            return
        kwargs = {key: self._kwargs[key] for key in self._kwargs if key not in _OWN_OPTIONS}
        sim = type(self).simulator_class(self._name, **kwargs)
        columns = dict(sim.columns)
        if self.return_image:
            columns["rgb"] = (sim.image().shape, np.dtype(np.uint8))
        state_format = StateFormat(
            sim.family,
            sim.meaning(),
            sim.payload_nbytes,
            checksum=sim.checksum,
            variable=sim.variable,
        )
        self._layout = Layout(
            sim.observation_space,
            sim.action_space,
            state_format,
            columns,
            plain_infos=sim.plain_infos,
            exact=sim.exactness == "exact",
            out_of_bounds=self._kwargs["out_of_bounds"],
        )
        self.auditor = Auditor(
            self._layout,
            self.name,
            sim.state_difference,
            self._note_inexact,
            mode=self._kwargs["audit"],
            every=self._kwargs["audit_every"],
            stats=self._stats,
            wrappers=sim.wrapper_names(),
        )
        self._lock = threading.RLock()
        self._current = CurrentState(sim, state_format)
        self._sim = sim
        forget_after_fork(self)

    def _note_inexact(self, note: str) -> None:
        """Declare the environment approximate, and warn: the audit has found a difference."""
        assert self._sim is not None
        self._sim.exactness, self._sim.exactness_note = "approximate", note
        warnings.warn(note, RuntimeWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        if self._sim is not None:
            raise TypeError(
                f"{self!r} holds a live simulator and cannot be pickled: send its state rows, or "
                "make it with delay_setup=True and pickle it before its first use"
            )
        return self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # What it is

    @property
    def name(self) -> str:
        """The id, or the name of the callable that makes the environment."""
        return name_of(self._name)

    @property
    def simulator(self) -> Simulator:
        """The simulator, standing in the env's current state."""
        self._wake()
        return self._made()

    @property
    def gym_env(self) -> gymnasium.Env[Any, Any]:
        """The wrapped Gymnasium environment, standing in the env's current state."""
        return self.simulator.env

    @property
    def layout(self) -> Layout:
        """What this environment's batches look like."""
        self.setup()
        return self._layout

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
    def img_shape(self) -> tuple[int, ...]:
        """The shape of `get_image`'s pictures."""
        return self.get_image().shape

    @property
    def state_nbytes(self) -> int:
        """Bytes in one state row."""
        return self.layout.format.state_nbytes

    @property
    def frameskip(self) -> int | tuple[int, int]:
        """Frames that one action lasts; a pair is the range that it is drawn from."""
        return self._made().frameskip

    @property
    def exactness(self) -> str:
        """``"exact"``: bit-identical to never having stopped; else ``"approximate"``."""
        return self._made().exactness

    @property
    def exactness_note(self) -> str:
        """Why `exactness` is what it is."""
        return self._made().exactness_note

    @property
    def snapshot(self) -> str:
        """How states are saved: ``"native"``, ``"pickle"`` or ``"replay"``."""
        return self._made().snapshot

    @property
    def snapshot_note(self) -> str:
        """Why they are saved that way."""
        return self._made().snapshot_note

    @property
    def stats(self) -> Stats:
        """What has happened to batches so far."""
        return self._stats

    @property
    def unwrapped(self) -> Self:
        """This env itself: wrappers live inside it."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_closed", True):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        sim = self.simulator
        if hasattr(sim, name):
            return getattr(sim, name)
        return sim.env.get_wrapper_attr(name)

    # The current state

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> ResetResult | ResetObservation:
        """Start an episode.

        Without a seed, the current state's random generator goes on, as in Gymnasium; the first
        time, a fresh one is made. Batches in between change nothing. If it raises, the current
        state stays what it was.

        Returns
        -------
        ResetResult
            ``(state, obs, info)``, or ``(obs, info)`` with ``return_state=False``.
        """
        with self._using() as sim:
            current = self._current
            current.prepare_reset()
            try:
                obs, info = sim.reset(seed, owned(options))
                obs, info = owned(obs), owned_info(info)
                if self.return_image:
                    info["rgb"] = owned(sim.image())
                state = current.read() if return_state else None
            except BaseException:
                current.fails()
                raise
            current.begins(own=True)
            return ResetObservation(obs, info) if state is None else ResetResult(state, obs, info)

    def get_state(self) -> Row:
        """Return the current state as a fresh row ``(state_nbytes,) uint8``."""
        with self._using(start=True):
            row = self._current.row
            return self._current.read() if row is None else row.copy()

    def set_state(self, state: Row) -> None:
        """Make `state` the current state.

        Raises
        ------
        StateError
            The row is malformed or of another environment; the current state stays.
        """
        with self._using():
            self._current.write(self._checked(state))
            self._current.begins(own=False)

    def step(
        self,
        action: Any,
        state: Row | None = None,
        dt: int = 1,
        return_state: bool | None = None,
    ) -> Transition | Step:
        """Hold `action` for ``dt * frameskip`` frames, or until the episode ends.

        Parameters
        ----------
        action : element of the action space
            Numbers of a `Box` keep the dtype that ``numpy.asarray`` gives them, and may lie beyond
            its bounds unless `out_of_bounds` says otherwise.
        state : row, optional
            The state to step from; the env is left in what comes of it.
        dt : int
            At least 1.
        return_state : bool, optional
            ``None`` returns the state exactly where one was given.

        Returns
        -------
        Transition
            ``(state, obs, reward, terminated, truncated, info)``; without the state, a `Step`.

        Raises
        ------
        InputError, StateError
            Nothing has happened then.
        Exception
            What the environment raises. With `state`, an episode that began with `reset` goes on
            where it was; if the episode began with a given state, its current state is lost, and
            what asks for it raises `StateLostError`. Without `state`, the environment is as its own
            ``step`` left it.
        """
        with self._using(start=state is None) as sim:
            chosen = owned(
                as_actions(self.action_space, action, 0, self._layout.out_of_bounds)
            )
            steps = check_dt(dt)
            if not isinstance(steps, int):
                raise InputError("step takes one dt")
            current = self._current
            if state is None:
                current.restore()
                outcome = sim.step(chosen, steps)
                current.is_in_simulator()
            else:
                current.write(self._checked(state))
                try:
                    outcome = sim.step(chosen, steps)
                except BaseException:
                    current.fails()
                    raise
                current.begins(own=False)
            return self._deliver(
                sim, outcome, steps, return_state if return_state is not None else state is not None
            )

    def _deliver(
        self, sim: Simulator, outcome: Outcome, dt: int, return_state: bool
    ) -> Transition | Step:
        obs, reward, terminated, truncated, info, frames = outcome
        # Before anything else happens to the simulator, which may keep both.
        obs, info = owned(obs), owned_info(info)
        info["n_step"], info["dt"] = frames, dt
        if self.return_image:
            info["rgb"] = owned(sim.image())
        state = self._current.read() if return_state else None
        if self.autoreset and (terminated or truncated):
            try:
                sim.reset()
            except BaseException:
                self._current.fails()
                raise
        if state is None:
            return Step(obs, reward, terminated, truncated, info)
        return Transition(state, obs, reward, terminated, truncated, info)

    def sample_action(self) -> Any:
        """Return a random action."""
        return self.action_space.sample()

    def get_image(self) -> NDArray[np.uint8]:
        """Return the picture of the current state, ``(height, width, 3) uint8``."""
        with self._using(start=True) as sim:
            self._wake()
            return cast(NDArray[np.uint8], owned(sim.image()))

    # Life and death

    def clone(self, **changed: Any) -> Self:
        """Return another env built with the same arguments, but for `changed`.

        It stands in this env's state, unless the change gives states another meaning.
        """
        kwargs = {**self._kwargs, **changed}
        other = type(self)(kwargs.pop("name", self._name), **kwargs)
        if self._sim is not None and self._current.started and other._sim is not None:
            if other._layout.format == self._layout.format:
                other.set_state(self.get_state())
        return other

    def close(self) -> None:
        """Release the simulator; may be called again."""
        if self._sim is not None:
            self._sim.close()
            self._sim = None
        self._closed = True

    def forget(self) -> None:
        """Close in a forked copy of the process, if another thread was using it there."""
        if held_by_lost_thread(self._lock):
            # The simulator is not closed: what it was doing is unfinished for ever.
            self._lock, self._sim = threading.RLock(), None
            self._closed = self._torn = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _using(self, *, start: bool = False) -> Iterator[Simulator]:
        self.setup()
        with self._lock:
            if start:
                self._current.check(self.name)
                if not self._current.started:
                    self.reset(return_state=False)
            assert self._sim is not None
            yield self._sim

    def _checked(self, state: Row) -> Row:
        rows = self._layout.format.check(state)
        if len(rows) != 1:
            raise InputError(f"expected one state row, got {len(rows)}")
        return cast(Row, rows[0])

    def _park(self) -> None:
        self._current.set_aside()

    def _made(self) -> Simulator:
        self.setup()
        assert self._sim is not None
        return self._sim

    def _wake(self) -> None:
        self.setup()
        self._current.restore()
        self._current.is_in_simulator()


def name_of(name: Any) -> str:
    """Return an id as it is, and what a callable is called."""
    return name if isinstance(name, str) else getattr(name, "__name__", "?")


def closed(name: Any) -> ClosedError:
    """Return the error that says that the environment `name` was used after its end."""
    return ClosedError(f"the environment {name_of(name)} has been closed: make another one")
