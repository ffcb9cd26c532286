"""`Lanes`: stateful environments that are stepped together."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.errors import InputError, SnapshotError
from plangym_like.lanes.fitting import put_fitting
from plangym_like.lanes.tree import layout_of, layout_of_space, zeros
from plangym_like.plan_env import PlanEnv
from plangym_like.states import Row

Flags = NDArray[np.bool_]
# The lanes that a call concerns; ``None`` for all.
Which = Sequence[int] | NDArray[np.intp] | None


class Lanes(abc.ABC):
    """n environments of one kind that are stepped together, each in its own state.

    Lanes never reset by themselves: a lane whose episode has ended stays in its final state until
    `reset` or `set_states` is called for it. Results are written into the caller's trees of arrays
    ``(n, ...)``, row i for lane i. They do not depend on where or in which form lanes are stepped.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        Environments with equal spaces.
    num_lanes : int
        The number of lanes, n.

    Attributes
    ----------
    envs : list
    num_lanes : int
    observation_space, action_space : gymnasium.Space
        The spaces of one lane.
    observation_layout, action_layout : tree of Leaf
        The layouts of one observation and one action. That of observations is known after `start`.
    infos : list of dict
        For each lane, the info that its last `step` or `reset` returned.
    has_states : bool
        Whether lanes have state rows, as those of a `PlanEnv` do.
    step_infos : bool
        Whether steps update `infos`; if not, they are those of resets.
    steps_ended : bool
        Whether a lane whose episode has ended may be stepped with the others; the results of such a
        step have no meaning.
    """

    step_infos: ClassVar[bool] = True
    steps_ended: ClassVar[bool] = False
    observation_layout: Any

    def __init__(self, envs: Sequence[Any], num_lanes: int) -> None:
        self.envs = list(envs)
        self.num_lanes = num_lanes
        self.observation_space: Space[Any] = self.envs[0].observation_space
        self.action_space: Space[Any] = self.envs[0].action_space
        self.action_layout = layout_of_space(self.action_space)
        self.infos: list[dict[str, Any]] = [{} for _ in range(num_lanes)]
        self.has_states = all(map(is_plan_env, self.envs))

    def start(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> Any:
        """Reset all lanes and return their observations, a tree of new arrays ``(n, ...)``.

        `seeds` and `options`, one for each lane, are passed to the environments' ``reset``. May be
        called again.
        """
        nones = [None] * self.num_lanes
        obs: Any = None
        for lane, given in enumerate(zip(seeds or nones, options or nones, strict=True)):
            value = self._reset_noted(lane, *given)
            if obs is None:
                self.observation_layout = layout_of(value, self.observation_space)
                obs = zeros(self.observation_layout, (self.num_lanes,))
            # Before the next reset: environments may share the memory of their observations.
            put_fitting(obs, lane, value)
        return obs

    def reset(
        self,
        obs: Any,
        lanes: Which = None,
        *,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start new episodes in `lanes`, and write the first observations into their rows of `obs`.

        `seeds` and `options` have one entry for each of `lanes`, in their order. Without a seed, a
        lane continues with its environment's generator.
        """
        for place, lane in enumerate(self._chosen(lanes)):
            seed = seeds[place] if seeds else None
            put_fitting(
                obs, lane, self._reset_noted(lane, seed, options[place] if options else None)
            )

    def _reset_noted(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        try:
            obs, self.infos[lane] = self._reset(lane, seed, options)
        except BaseException as error:
            add_note(error, f"raised while lane {lane} was reset")
            raise
        return obs

    @abc.abstractmethod
    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Start a new episode in `lane`; return its first observation and info."""

    @abc.abstractmethod
    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Which = None,
    ) -> None:
        """Step `lanes` with their rows of `actions`, and write the results into their rows.

        Rows of other lanes are not changed. `obs` may hold the last observations.

        Raises
        ------
        InputError, ObservationError
            An observation does not fit its space, or a reward or flag is not a single number.
        RuntimeError
            An environment raised `StopIteration`. All other exceptions are raised unchanged.
        """

    # States

    @property
    def state_nbytes(self) -> int:
        """The number of bytes of one state row."""
        self._check_has_states()
        return int(self.envs[0].state_nbytes)

    def get_states(self, lanes: Which = None, *, out: Row | None = None) -> Row:
        """Return the states of `lanes` as rows, as `PlanEnv.get_state` does.

        Parameters
        ----------
        lanes : sequence of int, optional
        out : array ``(len(lanes), state_nbytes) uint8``, optional
            Where to write them.

        Raises
        ------
        SnapshotError
            The lanes have no state rows.
        """
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = np.empty((len(chosen), self.state_nbytes), np.uint8) if out is None else out
        for place, lane in enumerate(chosen):
            rows[place] = self._get_state(lane)
        return rows

    def set_states(self, states: Row, lanes: Which = None) -> None:
        """Set the states of `lanes` to the rows `states`, one for each or one for all.

        No observations are returned; keep those that came with the states.

        Raises
        ------
        StateError
            A row is malformed, or of another environment; no lane has changed.
        SnapshotError
            The lanes have no state rows.
        """
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = self.envs[0].layout.format.check(states)
        if len(rows) not in (1, len(chosen)):
            raise InputError(f"{len(rows)} states were given for {len(chosen)} lanes")
        for place, lane in enumerate(chosen):
            self._set_state(lane, rows[place if len(rows) > 1 else 0])

    def _get_state(self, lane: int) -> Row:
        row: Row = self.envs[lane].get_state()
        return row

    def _set_state(self, lane: int, row: Row) -> None:
        self.envs[lane].set_state(row)

    def _check_has_states(self) -> None:
        if not self.has_states:
            raise SnapshotError(
                "lanes of plain Gymnasium environments have no state rows: give an id, or a "
                "factory such as lambda: plangym_like.make(...)"
            )

    def _chosen(self, lanes: Which) -> Sequence[int]:
        return range(self.num_lanes) if lanes is None else [int(lane) for lane in lanes]

    def render(self, lane: int = 0) -> Any:
        """Render the environment of `lane`; vectorised lanes cannot be rendered."""
        return gym_env_of(self.envs[lane]).render()

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def is_plan_env(env: Any) -> TypeGuard[PlanEnv]:
    """Return whether `env` is a `PlanEnv`."""
    return isinstance(env, PlanEnv)


def gym_env_of(env: Any) -> Any:
    """Return the Gymnasium environment inside a `PlanEnv`, or `env` if it is one itself."""
    return env.simulator.env if is_plan_env(env) else env


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception of an environment.

    `StopIteration` is raised as a `RuntimeError`, since it would silently end the caller's loop.
    """
    if isinstance(error, StopIteration):
        failure = RuntimeError("an environment raised StopIteration")
        failure.add_note(note)
        raise failure from error
    error.add_note(note)
