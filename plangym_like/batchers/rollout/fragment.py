"""`Fragment`: T steps of B lanes; the memory that each group fills, and environments' infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.stepping import Outcome
from plangym_like.batchers.trees import (
    as_arrays,
    as_observation,
    as_torch_dtype,
    as_transitions,
    empty,
    merged,
    to_device,
)
from plangym_like.errors import InputError
from plangym_like.vector.tree import NUMERIC_KINDS, Leaf, take, tree_map

if TYPE_CHECKING:
    from tensordict import TensorDict


class State(NamedTuple):
    """The steps: ``act[t]`` is chosen at ``obs[t]``, earns ``rew[t]`` and leads to ``obs[t + 1]``.

    Attributes
    ----------
    obs : tree of Tensor ``(T + 1, B, ...)``
        Where ``fin[t]`` is true, ``obs[t + 1]`` is the first observation of the next episode.
    act : tree of Tensor ``(T, B, ...)``
    rew : Tensor float32 ``(T, B)``
    fin : Tensor bool ``(T, B)``
        Whether the step ended the episode: ``terminated | truncated``.
    terminated, truncated : Tensor bool ``(T, B)``
    stepno : Tensor int64 ``(T, B)``
        How many steps of the episode came before this one.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    stepno: torch.Tensor


class Inputs(NamedTuple):
    """The actor's inputs: ``actor(*inputs, hx=fragment.hx)`` computes its outputs again.

    At time t these are ``obs[t]`` and the ``act``, ``rew`` and ``fin`` of the previous step. In
    `Fragment.before`, `obs` is ``None``.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor


class Final(NamedTuple):
    """The last observations of the K episodes that ended; ``state.obs`` does not hold them.

    Attributes
    ----------
    t, lane : Tensor int64 ``(K,)``
        The episode of ``lane[k]`` ended with step ``t[k]``.
    obs : tree of Tensor ``(K, ...)``
    value : Tensor ``(K,)``
        The collecting actor's estimate of the value of `obs`; 0 if the episode terminated, or if
        the actor has no critic.
    hx : tree of Tensor ``(..., K, ...)``
        The recurrent state before `obs`, with the episodes along the second dimension.
    """

    t: torch.Tensor
    lane: torch.Tensor
    obs: Any
    value: torch.Tensor
    hx: Any


class Fragment(NamedTuple):
    """T steps of B lanes.

    Attributes
    ----------
    state : State
    actor : dict of str to tree of Tensor ``(T, B, ...)``
        The actor's infos: it returned ``actor[key][t]`` together with ``state.act[t]``.
    env : dict of str to tree of Tensor ``(T, B, ...)``
        The numbers in the environments' infos in this fragment; 0 where a step's info lacks the
        key. If numbers of several dtypes occur, the dtype is NumPy's common one.
    bootstrap : Tensor ``(1, B)``
        The critic's estimate at ``state.obs[T]``; float32 0 without a critic.
    hx : tree of Tensor
        The recurrent state before ``state.obs[0]``.
    version : Tensor int64 ``(B,)``
        The number of times that the weights had changed when each lane's actor loaded them.
    before : Inputs
        ``act``, ``rew`` and ``fin`` ``(1, B, ...)`` of the step before the fragment; its ``obs`` is
        ``None``. In the first fragment, ``fin`` is true and the others are 0.
    final : Final or None
        ``None`` if ``keep_final`` was false.
    sticky : bool
        Whether a lane whose episode ended stayed frozen for the rest of the fragment.

    Examples
    --------
    >>> import gymnasium
    >>> from plangym_like.batchers.rollout import BaseActorModule, same
    >>> class Right(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.ones(obs.shape[:2], dtype=torch.int64), (), {"value": obs[..., 0]}
    >>> envs, actor = [gymnasium.make("CartPole-v1")], Right()
    >>> with same.rollout(envs, actor, n_steps=12, seed=0) as fragments:
    ...     fragment = next(fragments)
    >>> fragment.state.fin.sum() == len(fragment.final.t)  # a final observation for each episode
    tensor(True)
    >>> actions, hx, info = actor(*fragment.inputs(), hx=fragment.hx)  # now with gradients
    >>> torch.equal(info["value"], fragment.actor["value"])
    True
    """

    state: State
    actor: dict[str, Any]
    env: dict[Any, Any]
    bootstrap: torch.Tensor
    hx: Any
    version: torch.Tensor
    before: Inputs
    final: Final | None
    sticky: bool

    def inputs(self) -> Inputs:
        """Return the actor's inputs at each step, ``(T, B, ...)``."""

        def behind(first: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
            return torch.cat((first, rest[:-1]))

        state, before = self.state, self.before
        return Inputs(
            take(state.obs, slice(None, -1)),
            tree_map(behind, before.act, state.act),
            behind(before.rew, state.rew),
            behind(before.fin, state.fin),
        )

    def rewards(self, gamma: float) -> torch.Tensor:
        """Return ``state.rew`` plus the discounted values after truncated episodes, ``(T, B)``.

        `gamma` times ``final.value`` is added to the reward of the last step of each truncated
        episode. Returns and advantages computed from these rewards are correct at the ends of
        episodes; only the end of the fragment needs a bootstrap.

        Raises
        ------
        InputError
            Episodes were truncated, but the actor has no critic or `final` was not kept.
        """
        rewards = self.state.rew
        if not bool((self.state.truncated & ~self.state.terminated & ~self.frozen).any()):
            return rewards.clone()
        if self.final is None or "value" not in self.actor:
            raise InputError(
                "episodes were truncated, and the values after them are unknown: give "
                "keep_final=True and an actor whose info has a 'value'"
            )
        value = self.final.value
        rewards = rewards.to(torch.promote_types(rewards.dtype, value.dtype), copy=True)
        trailing = (1,) * (value.ndim - 1)
        rewards = rewards.reshape(*rewards.shape, *trailing).repeat(1, 1, *value.shape[1:])
        rewards[self.final.t, self.final.lane] += gamma * value
        return rewards

    def to_tensordict(self) -> TensorDict:
        """Return the steps as a tensordict of batch size ``[B, T]``, in the layout of torchrl.

        The entries are ``"observation"`` (parts of a dict have their own names), ``"action"``, and
        the actor's infos. Under ``"next"`` are ``"observation"`` (at the end of an episode, the
        final one), ``"reward"``, ``"done"``, ``"terminated"``, ``"truncated"`` ``[B, T, 1]``, and
        the environments' infos. A `sticky` fragment also has a ``"mask"`` of the steps that are not
        `frozen`. Tensors may share memory with the fragment.

        Raises
        ------
        InputError
            An episode ended, but `final` was not kept; or two entries have the same name.
        """
        state, final = self.state, self.final
        ends = state.fin & ~self.frozen
        if final is None and bool(ends.any()):
            raise InputError("the final observations of episodes are unknown: give keep_final=True")

        def following(obs: torch.Tensor, last: torch.Tensor | None) -> torch.Tensor:
            obs = obs[1:].clone()
            if final is not None:
                obs[final.t, final.lane] = last  # type: ignore[assignment]
            return obs

        flags = {"done": state.fin, "terminated": state.terminated, "truncated": state.truncated}
        known = tree_map(following, state.obs, state.obs if final is None else final.obs)
        now = take(state.obs, slice(None, -1))
        before = merged(as_observation(now), {"action": state.act}, self.actor)
        after = merged(as_observation(known), {"reward": state.rew}, flags, self.env)
        before, after = tree_map(lambda leaf: leaf.transpose(0, 1), (before, after))
        return as_transitions(
            before, after, state.fin.T.shape, ~self.frozen.T if self.sticky else None
        )

    @property
    def frozen(self) -> torch.Tensor:
        """Tensor bool ``(T, B)``: true where a lane was frozen because its episode had ended.

        It is false everywhere unless the fragment is `sticky`.
        """
        frozen = torch.zeros_like(self.state.fin)
        if self.sticky:
            frozen[1:] = self.state.fin[:-1]
        return frozen

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the fragment on `device`."""
        moved: Self = to_device(self._replace(sticky=None), device, non_blocking=non_blocking)  # type: ignore[arg-type]
        return moved._replace(sticky=self.sticky)


def join_finals(finals: Sequence[Final]) -> Final:
    """Return all episodes of `finals`, whose leaves are tensors or arrays, as one `Final`."""

    def join(axis: int, *parts: Any) -> torch.Tensor:
        if isinstance(parts[0], np.ndarray):
            return torch.from_numpy(np.concatenate(parts, axis))
        return torch.cat(parts, axis)

    whole: Final = tree_map(partial(join, 0), *(final._replace(hx=None) for final in finals))
    return whole._replace(hx=tree_map(partial(join, 1), *(final.hx for final in finals)))


class FragmentOptions(NamedTuple):
    """Options that determine the content of fragments; see `batchers.rollout.multi.rollout`."""

    n_steps: int
    sticky: bool
    keep_final: bool
    infos: bool


class StepViews(NamedTuple):
    """The inputs and outputs of one step, for the actor ``(1, B, ...)`` and for lanes ``(B, ...)``.

    `actions` are arrays that share memory with `act`. Lanes write their results to `outcome`.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor
    actor: dict[str, Any]
    actions: Any
    outcome: Outcome
    stepno: NDArray[np.int64]


class FragmentBuffer:
    """The memory for the steps of one fragment, and views of each step.

    `observation`, `action` and `actor` are the layouts of what one lane has at one step.

    Attributes
    ----------
    obs : tree of CPU Tensor ``(T + 1, B, ...)``
    steps : dict of tree of CPU Tensor ``(T, B, ...)``
        The actions, rewards, flags, numbers of steps and the actor's infos.
    rows : list of StepViews
    last_obs : tree of Tensor ``(1, B, ...)``
        The observations after the last step.
    no_value : Tensor ``(B, ...)``
        Zeros like the critic's estimates at one step; without a critic, like rewards.
    """

    def __init__(
        self, num_steps: int, num_lanes: int, *, observation: Any, action: Any, actor: Any
    ) -> None:
        step = {
            "act": action,
            "rew": Leaf((), torch.float32),
            **dict.fromkeys(("fin", "terminated", "truncated"), Leaf((), torch.bool)),
            "stepno": Leaf((), torch.int64),
            "actor": actor,
        }
        self.steps = steps = empty(step, (num_steps, num_lanes))
        self.obs = obs = empty(observation, (num_steps + 1, num_lanes))
        arrays, obs_arrays = as_arrays(steps), as_arrays(obs)

        def row(t: int) -> StepViews:
            now = slice(t, t + 1)
            return StepViews(
                obs=take(obs, now),
                **take({name: steps[name] for name in ("act", "rew", "fin", "actor")}, now),
                actions=take(arrays["act"], t),
                outcome=Outcome(
                    take(obs_arrays, t + 1),
                    *(arrays[name][t] for name in ("rew", "terminated", "truncated", "fin")),
                ),
                stepno=arrays["stepno"][t],
            )

        self.rows = [row(t) for t in range(num_steps)]
        self.last_obs = take(obs, slice(-1, None))
        self.no_value = torch.zeros_like(steps["actor"].get("value", steps["rew"])[0])


# Infos of environments

# The keys that lead to a value in nested infos.
Path = tuple[Any, ...]
Columns = dict[Any, NDArray[Any]]

# Values of these types are noted as they are; others are converted and copied, which takes longer.
_NUMBERS = {float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_}


class InfoColumns:
    """The numbers in the infos of T steps of B lanes."""

    def __init__(self) -> None:
        self._noted: dict[Path, list[tuple[int, int, Any]]] = {}

    def note(self, infos: Mapping[Any, Any], t: int, lane: int, path: Path = ()) -> None:
        """Note the numbers in the info of one lane at step `t`; leave out everything else."""
        for key, value in infos.items():
            inner = (*path, key)
            if isinstance(value, Mapping):
                self.note(value, t, lane, inner)
                continue
            kind = type(value)
            if kind not in _NUMBERS and not (kind is int and abs(value) < 2**63):
                value = _as_numbers(value)
            if value is not None:
                self._noted.setdefault(inner, []).append((t, lane, value))

    def columns(self, num_steps: int, num_lanes: int) -> Columns:
        """Return a column ``(T, B, ...)`` for each path, with 0 where a step's info lacks it.

        The dtype holds all values: 0.5 among integers makes a column of float64.

        Raises
        ------
        InputError
            Two arrays of one path differ in shape.
        """
        columns: Columns = {}
        for path, noted in self._noted.items():
            times, lanes, values = zip(*noted, strict=True)
            try:
                rows = np.asarray(values)
            except ValueError as error:
                first, second, *_ = dict.fromkeys(map(np.shape, values))
                raise _other_shape(path, first, second) from error
            try:
                as_torch_dtype(rows.dtype)
            except InputError:
                continue
            columns[path] = np.zeros((num_steps, num_lanes, *rows.shape[1:]), rows.dtype)
            columns[path][times, lanes] = rows
        return columns


def join_infos(groups: Sequence[Columns]) -> dict[Any, Any]:
    """Return the infos of all groups as a tree of tensors ``(T, B, ...)``.

    Parameters
    ----------
    groups : sequence of dict
        The result of `InfoColumns.columns` of each group.

    Raises
    ------
    InputError
        The shapes of two groups differ, or a key leads to a number here and to more keys there.
    """
    tree: dict[Any, Any] = {}
    for path in dict.fromkeys(path for columns in groups for path in columns):
        known = [columns[path] for columns in groups if path in columns]
        for column in known:
            if column.shape != known[0].shape:
                raise _other_shape(path, known[0].shape[2:], column.shape[2:])
        blank = np.zeros_like(known[0])
        whole = np.concatenate([columns.get(path, blank) for columns in groups], 1)
        _put(tree, path, torch.from_numpy(whole))
    return tree


def _put(tree: Any, path: Path, value: torch.Tensor) -> None:
    for key in path[:-1]:
        if isinstance(tree, dict):
            tree = tree.setdefault(key, {})
    if not isinstance(tree, dict) or isinstance(tree.get(path[-1]), dict):
        raise InputError(
            f"the info {_name(path)} is a number in one step and a dict in another: keep one kind, "
            "or give infos=False"
        )
    tree[path[-1]] = value


def _other_shape(path: Path, first: Any, now: Any) -> InputError:
    return InputError(
        f"the info {_name(path)} had the shape {tuple(first)} before, and {tuple(now)} now. A "
        "fragment holds arrays of one shape: keep the shape, or give infos=False"
    )


def _name(path: Path) -> str:
    return repr("/".join(map(str, path)))


def _as_numbers(value: Any) -> NDArray[Any] | None:
    """Return a number, list or tensor as a new array; ``None`` if it is something else."""
    try:
        if isinstance(value, torch.Tensor):  # NumPy has no bfloat16
            value = (value.float() if value.dtype is torch.bfloat16 else value).detach().cpu()
        array = np.array(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in NUMERIC_KINDS else None
