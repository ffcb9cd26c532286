"""`StandingEnv`: a simulator that stands in a current state and is stepped from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from plangym_like.batches import check_dt
from plangym_like.errors import InputError
from plangym_like.made_env import MadeEnv
from plangym_like.ownership import owned, owned_info
from plangym_like.simulator import Outcome, Simulator
from plangym_like.spaces import as_actions
from plangym_like.states import Row
from plangym_like.transitions import ResetObservation, ResetResult, Step, Transition


class StandingEnv(MadeEnv):
    """What `PlanEnv` is before batches: see there for the parameters.

    While a batch uses the simulator, the current state is set aside (see `CurrentState`).
    Observations and infos may be the simulator's own, so they are copied before they are returned.
    """

    @property
    def img_shape(self) -> tuple[int, ...]:
        """The shape of `get_image`'s pictures."""
        return self.get_image().shape

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
            chosen = owned(as_actions(self.action_space, action, 0, self._layout.out_of_bounds))
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
