"""`Fragment`: T steps of B lanes; the memory that each group fills, and environments' infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.stepping import Outcome
from plangym_like.batchers.trees import (
    TimeBuffer,
    as_arrays,
    as_observation,
    as_torch_dtype,
    as_transitions,
    merged,
    to_device,
)
from plangym_like.errors import InputError
from plangym_like.vector.tree import Leaf, as_numbers, take, tree_map, with_axes

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
        The numbers in the environments' infos; 0 where a step's info lacks the key. A key is
        present from the first fragment in which it occurs. If numbers of several dtypes occur, the
        dtype is NumPy's common one, from that fragment on.
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
    env: dict[str, Any]
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


_FLAGS = ("fin", "terminated", "truncated")


class FragmentOptions(NamedTuple):
    """Options that determine the content of fragments; see `batchers.rollout.multi.rollout`."""

    n_steps: int
    sticky: bool
    keep_final: bool
    infos: bool


def fragment_layout(
    options: FragmentOptions,
    n_lanes: int,
    *,
    observation: Any,
    action: Any,
    actor: Any,
    hx: Any,
) -> Any:
    """Return the layout of one buffer, a tree of `Leaf`.

    `observation`, `action` and `actor` are the layouts of one step of one lane. `hx` is the layout
    of the recurrent state of all lanes, which are along the second dimension.
    """

    def rows(steps: int, layout: Any) -> Any:
        return with_axes(layout, (steps, n_lanes))

    flag, number = Leaf((), torch.bool), Leaf((), torch.int64)
    reward = Leaf((), torch.float32)
    value = actor.get("value", reward)
    n_steps = options.n_steps
    most = n_steps * n_lanes if options.keep_final else 0

    def lane_first(leaf: Leaf) -> Leaf:
        return Leaf((most, leaf.shape[0], *leaf.shape[2:]), leaf.dtype)

    step = {
        "act": action,
        "rew": reward,
        **dict.fromkeys(_FLAGS, flag),
        "stepno": number,
        "actor": actor,
    }
    return {
        "obs": rows(n_steps + 1, observation),
        "steps": rows(n_steps, step),
        "bootstrap": rows(1, value),
        "hx": hx,
        "version": rows(1, number),
        "before": rows(1, {"act": action, "rew": reward, "fin": flag}),
        "final": {
            "count": Leaf((1,), torch.int64),
            "t": Leaf((most,), torch.int64),
            "lane": Leaf((most,), torch.int64),
            "obs": with_axes(observation, (most,)),
            "value": with_axes(value, (most,)),
            "hx": tree_map(lane_first, hx),
        },
    }


def without_empty_rows(memory: Any) -> Any:
    """Return the memory of a buffer without the unused rows of `final`."""
    final = dict(memory["final"])
    count = final.pop("count")
    return {**memory, "final": {"count": count, **take(final, slice(0, int(count)))}}


class StepViews(NamedTuple):
    """The inputs and outputs of one step.

    Attributes
    ----------
    obs, act, rew, fin, actor : tree of Tensor ``(1, B, ...)``
        In the form that the actor takes and returns.
    actions : tree of array ``(B, ...)``
        Arrays that share memory with `act`, in the form that lanes take.
    outcome : Outcome
        The arrays that lanes write the results of the step to.
    stepno : array int64 ``(B,)``
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
    """The memory of one fragment, and views of each step. The constructor makes all views.

    Parameters
    ----------
    memory : tree of CPU Tensor
        Tensors of the layout that `fragment_layout` returns.

    Attributes
    ----------
    memory : tree of Tensor
    rows : list of StepViews
    last_obs : tree of Tensor ``(1, B, ...)``
        The observations after the last step.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        steps = TimeBuffer(memory["steps"])
        obs, tensors, arrays = TimeBuffer(memory["obs"]), steps.tensors, steps.arrays

        def row(t: int) -> StepViews:
            now = slice(t, t + 1)
            return StepViews(
                obs=take(obs.tensors, now),
                **take({name: tensors[name] for name in ("act", "rew", "fin", "actor")}, now),
                actions=take(arrays["act"], t),
                outcome=Outcome(
                    take(obs.arrays, t + 1),
                    *(arrays[name][t] for name in ("rew", "terminated", "truncated", "fin")),
                ),
                stepno=arrays["stepno"][t],
            )

        self.rows = [row(t) for t in range(steps.capacity)]
        self.last_obs = take(obs.tensors, slice(-1, None))
        self._final = as_arrays(memory["final"])
        self._num_final = 0

    def begin(self) -> None:
        """Discard the final observations of the previous fragment."""
        self._num_final = self._final["count"][0] = 0

    def keep_final(
        self, t: int, lanes: NDArray[np.intp], value: torch.Tensor | None, hx: Any
    ) -> None:
        """Keep the last observations of `lanes`, whose episodes ended with step `t`.

        Parameters
        ----------
        value : Tensor ``(B, ...)``, optional
            The critic's estimates for all lanes; ``None`` means zeros.
        hx : tree of Tensor
            The recurrent state of all lanes.
        """
        final, start = self._final, self._num_final
        stop = self._num_final = start + len(lanes)
        final["t"][start:stop] = t
        final["lane"][start:stop] = lanes

        def keep_obs(rows: NDArray[Any], obs: NDArray[Any]) -> None:
            rows[start:stop] = obs[lanes]

        tree_map(keep_obs, final["obs"], self.rows[t].outcome.obs)
        if value is None:
            final["value"][start:stop] = 0
        else:
            self.memory["final"]["value"][start:stop] = value[lanes]

        def keep_state(rows: torch.Tensor, state: torch.Tensor) -> None:
            rows[start:stop] = state.cpu()[:, lanes].transpose(0, 1)

        tree_map(keep_state, self.memory["final"]["hx"], hx)
        final["count"][0] = stop


# Infos of environments

# The keys that lead to a value in nested infos.
Path = tuple[Any, ...]
Columns = dict[Path, NDArray[Any]]

_DTYPES = {
    kind: np.dtype(kind)
    for kind in (int, float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_)
}


class InfoColumns:
    """The numbers in the infos of T steps of B lanes.

    Attributes
    ----------
    columns : dict of Path to array ``(T, B, ...)``
        0 where a step's info lacks the key. The dtype holds all values by NumPy's rules of
        promotion: 0.5 among integers makes a column of float64.
    """

    def __init__(self, num_steps: int, num_lanes: int) -> None:
        self._size = num_steps, num_lanes
        self.columns: Columns = {}

    def note(self, infos: Mapping[Any, Any], t: int, lane: int, path: Path = ()) -> None:
        """Write the numbers in the info of one lane at step `t`; leave out everything else.

        Raises
        ------
        InputError
            The shape of an array differs from an earlier one.
        """
        for key, value in infos.items():
            place = (*path, key)
            column = self.columns.get(place)
            # The usual case, in less time than the general one.
            if column is not None and column.ndim == 2 and _DTYPES.get(type(value)) is column.dtype:
                try:
                    column[t, lane] = value
                    continue
                except OverflowError:
                    pass
            if isinstance(value, Mapping):
                self.note(value, t, lane, place)
            else:
                self._note(place, column, value, t, lane)

    def _note(self, path: Path, column: NDArray[Any] | None, value: Any, t: int, lane: int) -> None:
        array = as_numbers(value)
        if array is None:
            return
        try:
            as_torch_dtype(array.dtype)
        except InputError:
            return
        if column is None:
            column = np.zeros((*self._size, *array.shape), array.dtype)
        elif column.shape[2:] != array.shape:
            raise _other_shape(path, column.shape[2:], array.shape, lane)
        column = column.astype(np.result_type(column.dtype, array.dtype), copy=False)
        column[t, lane] = array
        self.columns[path] = column


class FragmentInfos:
    """Joins the columns of groups, in the owner's process.

    A key is present from the first fragment in which it occurs, and dtypes never become narrower.
    """

    def __init__(self) -> None:
        # For each key, zeros in the form of one value.
        self._known: Columns = {}

    def join(self, groups: Sequence[Columns], num_steps: int, num_lanes: int) -> dict[Any, Any]:
        """Return the infos of all groups as a tree of tensors ``(T, B, ...)``.

        Parameters
        ----------
        groups : sequence of dict
            The `InfoColumns.columns` of each group.
        num_steps, num_lanes : int
            T, and the number of lanes of each group.

        Raises
        ------
        InputError
            The shapes of two groups or fragments differ, or a key leads to a number here and to
            more keys there.
        """
        for columns in groups:
            for path, column in columns.items():
                known = self._known.get(path, np.zeros(column.shape[2:], column.dtype))
                if known.shape != column.shape[2:]:
                    raise _other_shape(path, known.shape, column.shape[2:])
                self._known[path] = known.astype(np.result_type(known.dtype, column.dtype))
        tree: dict[Any, Any] = {}
        for path, known in self._known.items():
            parts = [
                columns[path]
                if path in columns
                else np.zeros((num_steps, num_lanes, *known.shape), known.dtype)
                for columns in groups
            ]
            whole = np.concatenate(parts, 1).astype(known.dtype, copy=False)
            _put(tree, path, torch.from_numpy(whole))
        return tree


def _put(tree: Any, path: Path, value: torch.Tensor) -> None:
    for key in path[:-1]:
        if isinstance(tree, dict):
            tree = tree.setdefault(key, {})
    if not isinstance(tree, dict) or isinstance(tree.get(path[-1]), dict):
        raise InputError(
            f"the info {_named(path)} is a number in one step and a dict in another: keep one "
            "kind, or give infos=False"
        )
    tree[path[-1]] = value


def _other_shape(path: Path, first: Any, now: Any, lane: int | None = None) -> InputError:
    owner = "the" if lane is None else f"lane {lane}'s"
    return InputError(
        f"{owner} info {_named(path)} had the shape {tuple(first)} before, and {tuple(now)} now. A "
        "fragment holds arrays of one shape: keep the shape, or give infos=False"
    )


def _named(path: Path) -> str:
    return repr(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
