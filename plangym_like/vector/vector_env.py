"""`PlanVectorEnv`: Gymnasium's vector API on lanes, with states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.errors import ClosedError, InputError
from plangym_like.states.rows import Row
from plangym_like.support.lazy_imports import needs_extra
from plangym_like.vector.batching import (
    batch_actions,
    batch_infos,
    checked_flags,
    checked_indices,
    checked_mask,
    checked_observations,
    checked_seeds,
    observation_spaces,
    with_masks,
)
from plangym_like.vector.lanes import (
    Finals,
    Flags,
    Lanes,
    LaneStats,
    StepArrays,
    Which,
    gym_env_of,
    open_env_of,
)
from plangym_like.vector.start_states import StartLanes
from plangym_like.vector.tree import tree_map, write_rows

Step = tuple[Any, NDArray[np.float64], Flags, Flags, dict[str, Any]]


class PlanVectorEnv(VectorEnv[Any, Any, Any]):
    """n environments as one `gymnasium.vector.VectorEnv`, whose states can be saved and restored.

    Results are the same as with `gymnasium.vector.SyncVectorEnv`, including autoreset, seeds,
    options, reset masks, infos and spaces. Use `plangym_like.make_vec` to make one.

    Parameters
    ----------
    lanes : Lanes
        The environments. Closing this object closes them, too.
    autoreset_mode : {"NextStep", "SameStep", "Disabled"} or gymnasium.vector.AutoresetMode
        When to reset an environment whose episode has ended.
    copy : bool
        Whether `reset` and `step` return copies of the observations. Without copies, the next call
        overwrites them.
    observation_mode : {"same", "different"} or (Space, Space)
        Whether the observation spaces must be equal, or may differ in their bounds. A pair gives
        the space of the batched observations, and the space of one observation.
    start_states : (states, observations), optional
        States ``(K, state_nbytes) uint8``, and the observations ``(K, ...)`` that came with them.
        Each episode then begins in one of them, drawn at random by the seed of `reset`, with a new
        random generator. The infos of a reset are those of the environment's own reset.

    Raises
    ------
    InputError
        `autoreset_mode` is not one of these modes, or `start_states` is not such a pair.
    StateError, SnapshotError
        A start state belongs to another environment, or the environments have no state rows.
    RuntimeError
        The spaces of the environments do not match, as in `gymnasium.vector.SyncVectorEnv`.

    Examples
    --------
    >>> import plangym_like
    >>> with plangym_like.make_vec("CartPole-v1", 3) as envs:
    ...     obs, infos = envs.reset(seed=0)
    ...     envs.set_states(envs.get_states([0])[0])  # all continue from the first one's state
    ...     obs, *_ = envs.step([1, 1, 1])
    >>> bool((obs == obs[0]).all())
    True
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        start_states: tuple[Row, Any] | None = None,
    ) -> None:
        self._lanes = lanes
        if start_states is not None:
            self._lanes = StartLanes(lanes, start_states)  # type: ignore[assignment]
        self.num_envs = lanes.num_lanes
        # The results of the last calls; observations come with the first reset.
        self._obs: Any = None
        self._rewards = np.zeros(self.num_envs)
        self._terminated, self._truncated, self._ended = np.zeros((3, self.num_envs), bool)
        self.copy = copy
        self.autoreset_mode = _checked_mode(autoreset_mode)
        first = gym_env_of(lanes.envs[0])
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_action_space = lanes.action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space, self.single_observation_space = observation_spaces(
            lanes.spaces, self.num_envs, observation_mode
        )

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
    def envs(self) -> list[Any]:
        """The Gymnasium environments of this process; a vectorised form may need only one."""
        self._lanes.expose()
        return list(map(open_env_of, self._lanes.envs))

    @property
    def np_random_seed(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The seeds that the environments were last reset with."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments."""
        return self.get_attr("np_random")

    @property
    def pids(self) -> list[int]:
        """The process ids of the other processes that step environments, if any."""
        return self._lanes.pids

    @property
    def stats(self) -> LaneStats:
        """Counters of deaths, lost episodes and the like in processes that step environments."""
        return self._lanes.stats

    # Episodes

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in every environment, or in some of them.

        Parameters
        ----------
        seed : int, sequence of int or None, optional
            Environment i is seeded with ``seed + i``, or with entry i. With ``None``, it
            continues with its random generator.
        options : dict, optional
            Passed to each environment's ``reset``, except ``"reset_mask"``: an array ``(n,) bool``,
            true for the environments to reset. The other environments do not change.

        Returns
        -------
        observations : array ``(n, ...)``, or a tree of them
        infos : dict

        Raises
        ------
        InputError
            There are not n seeds, or a seed is not a whole number of at least 0.
        TypeError, ValueError
            ``"reset_mask"`` is not an array ``(n,) bool`` with at least one true entry, or is not
            all true at the first reset.
        """
        self._begin()
        seeds = checked_seeds(seed, self.num_envs)
        mask = None
        if options is not None and "reset_mask" in options:
            mask = checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        chosen = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if self._obs is None:
            if len(chosen) < self.num_envs:
                raise ValueError("the first reset must reset all environments, without reset_mask")
            self._obs = self._lanes.start(seeds, [options] * self.num_envs)
        else:
            lanes = None if mask is None else chosen
            given = [seeds[lane] for lane in chosen]
            self._lanes.reset(self._obs, lanes, seeds=given, options=[options] * len(chosen))
        for flags in (self._terminated, self._truncated, self._ended):
            flags[chosen] = False
        reset = set(chosen.tolist())
        infos = [info if lane in reset else {} for lane, info in enumerate(self._lanes.infos)]
        return self._observations(), batch_infos(self, infos)

    def step(self, actions: Any) -> Step:
        """Step every environment, and reset environments as `autoreset_mode` specifies.

        Parameters
        ----------
        actions : array ``(n, ...)``, or an element of `action_space`
            Integers may have any integer dtype; floats keep their dtype.

        Returns
        -------
        observations : array ``(n, ...)``, or a tree of them
        rewards : array ``(n,) float64``
        terminations, truncations : array ``(n,) bool``
        infos : dict

        Raises
        ------
        TypeError, ValueError
            There are not n actions, or they do not have the shape of the action space.
        ResetNeeded
            The environments have not been reset, or an episode has ended and autoreset is disabled.
        """
        self._begin()
        if self._obs is None:
            raise ResetNeeded("reset the environments before the first step")
        batch = batch_actions(actions, self.action_space, self._lanes.action_layout, self.num_envs)
        out = StepArrays(self._obs, self._rewards, self._terminated, self._truncated)
        finals: Finals = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._lanes.step(batch, out, finals=finals)
        elif not np.count_nonzero(self._ended):
            self._lanes.step(batch, out)
        elif self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._lanes.step(batch, out, ended=self._ended)
        else:
            raise ResetNeeded(
                f"the episodes of environments {np.flatnonzero(self._ended).tolist()} have ended: "
                "reset them with options={'reset_mask': ...}"
            )
        np.logical_or(self._terminated, self._truncated, out=self._ended)
        if finals:
            self._ended[list(finals)] = False
        columns = None if finals else self._lanes.info_columns()
        if columns is None:
            infos = batch_infos(self, self._lanes.infos, finals)
        else:
            infos = with_masks(columns)
        flags = self._terminated.copy(), self._truncated.copy()
        return self._observations(), self._rewards.copy(), *flags, infos

    def render(self) -> tuple[Any, ...]:
        """Call ``render`` of each environment, and return the results."""
        return self.call("render")

    # The environments

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return attribute `name` of each environment; if callable, the result of calling it."""
        self._begin()
        return tuple(self._lanes.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return attribute `name` of each environment; the same as ``call(name)``."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set attribute `name` of each environment.

        Parameters
        ----------
        name : str
        values : list or tuple, or any other value
            A list or tuple has one value for each environment; any other value is for
            every environment.

        Raises
        ------
        InputError
            There are not n values.
        """
        self._begin()
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InputError(
                f"values must have one entry for each of {self.num_envs} environments, got "
                f"{len(values)}"
            )
        self._lanes.set_attr(name, values)

    def as_sb3(self) -> Any:
        """Return these environments as a ``VecEnv`` of Stable-Baselines3, an `Sb3VecEnv`.

        Do not use this object afterwards: the new one resets and closes the same environments.

        Raises
        ------
        MissingExtraError
            Stable-Baselines3 is not installed.
        """
        with needs_extra("Stable-Baselines3 is not installed", "sb3", "stable_baselines3"):
            from plangym_like.vector.sb3_vec_env import Sb3VecEnv
        self._begin()
        return Sb3VecEnv(self._lanes)

    def as_torchrl(self, *, states: bool = False, device: Any = None) -> Any:
        """Return these environments as an ``EnvBase`` of torchrl, a `TorchrlEnv`.

        Do not use this object afterwards: the new one resets and closes the same environments.

        Parameters
        ----------
        states : bool
            Whether tensordicts hold state rows, as ``"state_row"``.
        device : torch.device or str, optional
            The device of all tensors.

        Raises
        ------
        MissingExtraError
            torchrl is not installed.
        InputError, SnapshotError
            See `TorchrlEnv`.
        """
        with needs_extra("torchrl is not installed", "torchrl", "torch", "torchrl"):
            from plangym_like.vector.torchrl_env import TorchrlEnv
        self._begin()
        return TorchrlEnv(self._lanes, states=states, device=device)

    # States

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
        if self.autoreset_mode is AutoresetMode.SAME_STEP and flags.any():
            raise InputError(
                "with autoreset_mode='SameStep', no environment stays at the end of an episode: "
                "reset the environments of states that are ended, with reset_mask, instead of "
                "setting these states"
            )
        if observations is not None:
            space = self._lanes.observation_space
            observations = checked_observations(observations, space, len(rows))
        self._lanes.set_states(states, chosen, seeds)
        self._terminated[rows], self._truncated[rows], self._ended[rows] = False, False, flags
        if observations is not None:
            write_rows(self._obs, rows, observations)

    # Conversions

    def _observations(self) -> Any:
        obs = self._obs
        if type(obs) is np.ndarray and not obs.dtype.hasobject:
            return obs.copy() if self.copy else obs
        return tree_map(self._handed_out, obs)

    def _handed_out(self, leaf: NDArray[Any]) -> Any:
        if leaf.dtype.hasobject:
            return tuple(map(owned, leaf)) if self.copy else tuple(leaf)
        return leaf.copy() if self.copy else leaf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._lanes.close()


def _checked_mode(mode: str | AutoresetMode) -> AutoresetMode:
    """Return `mode` as an `AutoresetMode`; raise `InputError` if it is not one of them."""
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        known = ", ".join(repr(each.value) for each in AutoresetMode)
        raise InputError(f"autoreset_mode must be one of {known}, got {mode!r}") from error
