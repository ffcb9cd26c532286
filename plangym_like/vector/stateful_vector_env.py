"""`StatefulVectorEnv`: the states of vectorised environments."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv

from plangym_like.batch.spaces import as_actions
from plangym_like.env import PlanEnv
from plangym_like.errors import ClosedError, InputError
from plangym_like.states.rows import Row
from plangym_like.vector.lane_states import env_of_rows
from plangym_like.vector.lanes import Lanes, Which
from plangym_like.vector.row_copies import write_rows
from plangym_like.vector.step_arrays import Flags
from plangym_like.vector.vector_arguments import checked_flags, checked_indices, checked_rows


class StatefulVectorEnv(VectorEnv[Any, Any, Any]):
    """The base class of `PlanVectorEnv`, with the methods for states.

    Parameters
    ----------
    lanes : Lanes
        The environments. Closing this object closes them, too.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        lanes.takes_objects = True
        self.num_envs = lanes.num_lanes
        # The results of the last calls; observations come with the first reset.
        self._obs: Any = None
        self._rewards = np.zeros(self.num_envs)
        self._terminated, self._truncated, self._ended = np.zeros((3, self.num_envs), bool)
        # The environment that steps batches of state rows, made when it is first needed.
        self._row_env: PlanEnv | None = None
        # Whether an environment whose episode ends is reset in the same step.
        self._resets_at_once = False

    def __del__(self) -> None:
        """Do nothing. Before Gymnasium 1.3, the base class closes environments given to others."""

    def _begin(self) -> None:
        """Prepare for a call; raise `ClosedError` if the environments have been closed."""
        if self.closed:
            raise ClosedError("the environments have been closed: make others")

    def _begin_started(self) -> None:
        self._begin()
        if self._obs is None:
            raise ResetNeeded("reset the environments first")

    @property
    def has_states(self) -> bool:
        """Whether the environments have state rows, as environments of `plangym_like.make` do."""
        return self._lanes.has_states

    @property
    def state_nbytes(self) -> int:
        """The number of bytes in one state row."""
        return self._lanes.state_nbytes

    def get_states(self, indices: Which = None) -> Row:
        """Return the states of the environments.

        Parameters
        ----------
        indices : sequence of int, optional
            The environments; by default all.

        Returns
        -------
        array ``(K, state_nbytes) uint8``
            Rows as `PlanEnv.get_state` returns them.

        Raises
        ------
        SnapshotError
            The environments are plain Gymnasium environments, which have no state rows.
        InputError
            The state rows have different lengths.
        WorkerDiedError
            States were lost with their process; the message names the environments.
        """
        self._begin_started()
        return self._lanes.get_states(checked_indices(indices, self.num_envs))

    @property
    def ended(self) -> Flags:
        """Which environments are at the end of an episode and not yet reset, ``(n,) bool``."""
        self._begin()
        return self._ended.copy()

    def set_states(
        self,
        states: Row,
        indices: Which = None,
        *,
        seeds: Any = None,
        ended: bool | Flags = False,
        observations: Any = None,
    ) -> None:
        """Put environments into states, from which their episodes continue.

        Parameters
        ----------
        states : array ``(K, state_nbytes) uint8``
            One for each of `indices`, or one row for all. Environments with equal rows also draw
            equal random numbers from then on, unless `seeds` are given.
        indices : sequence of int, optional
            The environments; by default all.
        seeds : int array ``(K,)``, optional
            The seeds of new random generators, which replace the ones in the states.
        ended : bool or array ``(K,) bool``
            Whether each state is at the end of an episode, as `ended` was when the state was saved.
        observations : array ``(K, ...)``, or a tree of them, optional
            The observations of these states. A `reset` with a mask returns them for environments
            that it does not reset.

        Raises
        ------
        StateError
            A row is damaged, or belongs to another environment; nothing has changed.
        InputError
            The lengths or shapes do not match, a seed is not a whole number of at least 0, or
            states are `ended` although the autoreset mode is ``"SameStep"``; nothing has changed.
        SnapshotError
            The environments are plain Gymnasium environments, which have no state rows.
        """
        self._begin_started()
        chosen = checked_indices(indices, self.num_envs)
        rows = np.arange(self.num_envs) if chosen is None else chosen
        flags = checked_flags("ended", ended, len(rows))
        if self._resets_at_once and flags.any():
            raise InputError(
                "with autoreset_mode='SameStep', no environment stays at the end of an episode: "
                "reset the environments of states that are ended, with reset_mask, instead of "
                "setting these states"
            )
        if observations is not None:
            observations = checked_rows("observations", observations, self._obs, len(rows))
        self._lanes.set_states(states, chosen, seeds)
        self._terminated[rows], self._truncated[rows], self._ended[rows] = False, False, flags
        if observations is not None:
            write_rows(self._obs, rows, observations)

    def step_batch(self, actions: Any, states: Any = None, dt: Any = 1, **options: Any) -> Any:
        """Step state rows, each with its own action; the environments do not change.

        This calls `PlanEnv.step_batch` of an additional environment, which is made at the first
        call. If possible, it uses as many processes as these environments do. Changes by `set_attr`
        and `call` have no effect on it unless they are part of the states.

        Parameters
        ----------
        actions : array ``(N, *action_shape)``, sequence, or one action for all rows
        states : array ``(N, state_nbytes) uint8``, or one row for all, optional
            By default the current states of the environments; there are then n actions.
        dt : int or int array ``(N,)``
            How long each action is held, in units of `frameskip` frames.
        options
            ``return_state``, ``seeds``, ``blocking`` and ``on_error``, as in `PlanEnv.step_batch`.

        Returns
        -------
        BatchTransition
            ``(states, obs, rewards, terminateds, truncateds, infos)``. With
            ``return_state=False``, which is the default if `states` is not given, a `BatchStep`
            without the next states. With ``blocking=False``, a `Future` of this result.

        Raises
        ------
        SnapshotError
            The environments are plain Gymnasium environments, which have no state rows.
        InputError, StateError
            An argument is invalid, or the environments were not all made in the same way.
        """
        self._begin()
        formats = self._lanes.formats
        if len(set(formats)) > 1:
            raise InputError(
                "the environments were made differently, so a state row has a different meaning "
                "in each: use step_batch of plangym_like.make(...) for each kind"
            )
        if states is None:
            count = len(as_actions(self.single_action_space, actions))
            if count != self.num_envs:
                raise InputError(
                    f"without states, there must be one action for each of {self.num_envs} "
                    f"environments, got {count}"
                )
            states = self.get_states()
            options = {"return_state": False, **options}
        if self._row_env is None:
            self._row_env = env_of_rows(self._lanes.envs[0], len(self._lanes.pids) + 1)
        return self._row_env.step_batch(actions, states, dt, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        try:
            self._lanes.close()
        finally:
            self._close_row_env()

    def _close_row_env(self) -> None:
        row_env, self._row_env = self._row_env, None
        if row_env is not None:
            row_env.close()
