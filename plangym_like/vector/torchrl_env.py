"""`TorchrlEnv`: lanes as an environment of torchrl."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from plangym_like.errors import ClosedError, InputError, WorkerDiedError
from plangym_like.states.rows import Row
from plangym_like.vector.batching import (
    batch_actions,
    checked_indices,
    checked_seeds,
    observation_spaces,
)
from plangym_like.vector.lanes import Lanes, StepArrays, Which
from plangym_like.vector.tree import named_parts, take, write_rows

STATE_KEY = "state_row"
_FLAGS = ("done", "terminated", "truncated")
_RESERVED = {*_FLAGS, "reward", "action", "next", "_reset", "_step", STATE_KEY}


class TorchrlEnv(EnvBase):  # type: ignore[misc]
    """A `torchrl.envs.EnvBase` of batch size ``[n]``; `PlanVectorEnv.as_torchrl` returns it.

    Its tensordicts hold, in the dtypes of the spaces:

    ==================  ===========================================================================
    ``observation``     the observations; a ``Dict`` space instead has one entry for each part, and
                        the parts of a ``Tuple`` are called ``"0"``, ``"1"``, ...
    ``action``          the actions; discrete actions are numbers, not one-hot vectors
    ``reward``          ``(n, 1) float32``
    ``terminated``      ``(n, 1) bool``
    ``truncated``       ``(n, 1) bool``
    ``done``            ``(n, 1) bool``: whether ``terminated`` or ``truncated`` is true
    ``state_row``       ``(n, state_nbytes) uint8``, if `states` is true
    ==================  ===========================================================================

    An environment whose episode has ended stays in its final state until it is reset. The
    collectors of torchrl, and ``rollout``, reset these environments.

    Parameters
    ----------
    lanes : Lanes
        The environments. Closing this object closes them, too.
    states : bool
        Whether tensordicts hold state rows. ``reset(tensordict, set_state=True)`` then puts the
        environments into the states of `tensordict`, which must also hold the observations of these
        states.
    device : torch.device or str, optional
        The device of all tensors.

    Raises
    ------
    InputError
        torchrl has no spec for a space, or a part of the observation has a name that torchrl uses.
    RuntimeError
        The spaces of the environments differ.
    SnapshotError
        `states` is true, but the environments have no state rows.
    """

    def __init__(self, lanes: Lanes, *, states: bool = False, device: Any = None) -> None:
        n = lanes.num_lanes
        super().__init__(device=device, batch_size=[n])
        self._lanes = lanes
        # torchrl reads this attribute to find out whether `reset` takes set_state=True.
        self._supports_set_state = bool(states)
        self._obs: Any = None
        self._seeds: list[int | None] = [None] * n
        self._rewards = np.zeros(n, np.float32)
        self._terminated, self._truncated = np.zeros((2, n), bool)
        _, space = observation_spaces(lanes.spaces, n, "same")
        self._action_batch = gymnasium.vector.utils.batch_space(lanes.action_space, n)
        self._is_dict = isinstance(space, gymnasium.spaces.Dict)
        observed = spec_of(space, "the observation")
        if not self._is_dict:
            observed = Composite(observation=observed)
        self._obs_keys = list(observed.keys())
        if taken := _RESERVED & set(self._obs_keys):
            raise InputError(
                f"parts of the observation use names of torchrl, {sorted(taken)}: rename them in a "
                "wrapper"
            )
        if states:
            observed[STATE_KEY] = Unbounded((lanes.state_nbytes,), dtype=torch.uint8)
        flag = Categorical(2, (1,), dtype=torch.bool)

        def batched(spec: Any) -> Any:
            return spec.expand(n, *spec.shape).to(self.device)

        self.observation_spec = batched(observed)
        self.full_action_spec = batched(Composite(action=spec_of(lanes.action_space, "the action")))
        self.reward_spec = batched(Unbounded((1,), dtype=torch.float32))
        self.done_spec = batched(Composite({name: flag.clone() for name in _FLAGS}))
        self.is_closed = False

    def _reset(
        self, tensordict: Any, *, set_state: bool = False, options: dict[str, Any] | None = None
    ) -> Any:
        self._check_open()
        count = self._lanes.num_lanes
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = np.arange(count) if mask is None else np.flatnonzero(_as_flags(mask))
        if self._obs is None and len(chosen) < count:
            raise ResetNeeded("the first reset must reset all environments, without '_reset'")
        states = self._states_of(tensordict, chosen) if set_state else None
        seeds = [self._seeds[lane] for lane in chosen]
        if self._obs is None:
            self._obs = self._lanes.start(seeds, [options] * count)
        elif states is None and len(chosen):
            given = [options] * len(chosen)
            self._lanes.reset(self._obs, chosen, seeds=seeds, options=given)
        if states is not None and len(chosen):
            rows, obs = states
            self._lanes.set_states(rows, chosen)
            write_rows(self._obs, chosen, obs)
        for lane in chosen:
            self._seeds[lane] = None
        self._terminated[chosen] = self._truncated[chosen] = False
        return self._tensordict()

    def _step(self, tensordict: Any) -> Any:
        self._check_open()
        if self._obs is None:
            raise ResetNeeded("reset the environments before the first step")
        lanes, mask = self._lanes, tensordict.get("_step", None)
        stepped = np.ones(lanes.num_lanes, bool) if mask is None else _as_flags(mask)
        if (stepped & (self._terminated | self._truncated)).any():
            raise ResetNeeded(
                "the episodes of some environments have ended: call maybe_reset, or reset with "
                "'_reset'"
            )
        actions = tensordict.get("action", None)
        if actions is None:
            raise InputError("the tensordict has no action: set its entry 'action'")
        given = as_tree(lanes.action_space, actions)
        actions = batch_actions(given, self._action_batch, lanes.action_layout, lanes.num_lanes)
        # Environments that are not stepped keep their observations and flags.
        self._rewards[~stepped] = 0.0
        which = None if stepped.all() else np.flatnonzero(stepped)
        out = StepArrays(self._obs, self._rewards, self._terminated, self._truncated)
        lanes.step(actions, out, which)
        return self._tensordict(reward=torch.from_numpy(self._rewards[:, None].copy()))

    def _set_seed(self, seed: int | None) -> None:
        """Seed environment i with ``seed + i`` at its next reset."""
        self._seeds = checked_seeds(seed, self._lanes.num_lanes)

    def get_states(self, indices: Which = None) -> Row:
        """Return state rows; see `PlanVectorEnv.get_states`."""
        self._check_open()
        if self._obs is None:
            raise ResetNeeded("reset the environments first")
        return self._lanes.get_states(checked_indices(indices, self._lanes.num_lanes))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments; safe to call more than once."""
        if not self.is_closed:
            self.is_closed = True
            self._lanes.close()

    def _tensordict(self, **more: torch.Tensor) -> Any:
        """Return observations, flags and the entries `more` as a new tensordict."""
        obs = as_tensors(self._obs if self._is_dict else {"observation": self._obs})
        flags = self._terminated | self._truncated, self._terminated, self._truncated
        named = zip(_FLAGS, (torch.from_numpy(each[:, None].copy()) for each in flags), strict=True)
        if self._supports_set_state:
            more[STATE_KEY] = torch.from_numpy(self._rows())
        return TensorDict({**obs, **dict(named), **more}, self.batch_size, device=self.device)

    def _rows(self) -> Row:
        """Return all state rows; a lost state is a row of zeros, which `set_states` refuses."""
        try:
            return self._lanes.get_states()
        except WorkerDiedError:
            rows = np.zeros((self._lanes.num_lanes, self._lanes.state_nbytes), np.uint8)
            for lane in range(len(rows)):
                try:
                    rows[lane] = self._lanes.get_states([lane])[0]
                except WorkerDiedError:
                    continue
            return rows

    def _states_of(self, tensordict: Any, chosen: NDArray[np.intp]) -> tuple[Row, Any]:
        """Return the state rows and observations of the environments `chosen` from `tensordict`."""
        needed = [STATE_KEY, *self._obs_keys]
        missing = needed if tensordict is None else [k for k in needed if k not in tensordict]
        if missing:
            raise InputError(f"set_state=True needs {needed} in the tensordict; {missing} missing")
        space = self._lanes.observation_space
        obs = as_tree(space, tensordict if self._is_dict else tensordict.get("observation"))
        rows: Row = tensordict.get(STATE_KEY).cpu().numpy()[chosen]
        return rows, take(obs, chosen)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the environments have been closed: make others")


def _as_flags(mask: Any) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = mask.reshape(-1).cpu().numpy()
    return flags


def spec_of(space: gymnasium.Space[Any], name: str) -> Any:
    """Return torchrl's spec for the elements of `space`; their dtypes are kept.

    Discrete values are numbers, not one-hot vectors. `Dict` and `Tuple` become a `Composite`; parts
    of a `Tuple` are named ``"0"``, ``"1"``, ...

    Parameters
    ----------
    space : gymnasium.Space
    name : str
        The name of the space in the error message.

    Raises
    ------
    InputError
        torchrl has no spec for the space, or for a part of it.
    """
    parts = _parts(space)
    if parts is not None:
        return Composite({key: spec_of(part, f"{name}[{key!r}]") for key, part in parts.items()})
    shape = space.shape
    if shape is None or space.dtype is None or space.dtype.kind not in "biuf":
        raise InputError(
            f"torchrl has no spec for {name}, a space {space}: it needs arrays of numbers"
        )
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return Binary(shape[-1], shape, dtype=dtype)
    if isinstance(space, gymnasium.spaces.Discrete):
        if space.start == 0:
            return Categorical(int(space.n), dtype=dtype)
        return Bounded(int(space.start), int(space.start + space.n - 1), shape, dtype=dtype)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        if len(shape) == 1 and not np.any(space.start):
            return MultiCategorical(space.nvec.tolist(), dtype=dtype)
        return _bounded(space.start, space.start + space.nvec - 1, dtype)
    if not isinstance(space, gymnasium.spaces.Box):
        raise InputError(
            f"torchrl has no spec for {name}, a space {space}: convert it to a Box in a wrapper"
        )
    if np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return _bounded(space.low, space.high, dtype)
    return Unbounded(shape, dtype=dtype)


def as_tensors(tree: Any) -> Any:
    """Convert a tree of arrays to nested dicts of tensors, which share no memory with it."""
    parts = named_parts(tree)
    if parts is None:
        return torch.from_numpy(np.array(tree))
    return {name: as_tensors(part) for name, part in parts.items()}


def as_tree(space: gymnasium.Space[Any], value: Any) -> Any:
    """Convert nested tensordicts to a tree of arrays with the structure of `space`."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: as_tree(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(as_tree(part, value[str(i)]) for i, part in enumerate(space.spaces))
    return value.detach().cpu().numpy()


def _parts(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]] | None:
    if isinstance(space, gymnasium.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return None


def _bounded(low: Any, high: Any, dtype: torch.dtype) -> Any:
    ends = [torch.as_tensor(np.array(end), dtype=dtype) for end in (low, high)]
    return Bounded(*ends, ends[0].shape, dtype=dtype)
