"""`FragmentBuffer`: the memory of one group's fragment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.tensor_tree import as_arrays
from plangym_like.batchers.episode_lanes import Outcome
from plangym_like.batchers.time_buffer import TimeBuffer
from plangym_like.vector.tree import Leaf, take, tree_map, with_axes

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
    env: Any,
    hx: Any,
) -> Any:
    """Return the layout of one buffer, a tree of `Leaf`.

    `observation`, `action`, `actor` and `env` are the layouts of one step of one lane. `hx` is the
    layout of the recurrent state of all lanes, which are along the second dimension.
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
        "env": env,
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


class Row(NamedTuple):
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
    env : tree of array ``(T, B, ...)``
        The columns of the environments' infos.
    rows : list of Row
    last_obs : tree of Tensor ``(1, B, ...)``
        The observations after the last step.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        steps = TimeBuffer(memory["steps"])
        obs, tensors, arrays = TimeBuffer(memory["obs"]), steps.tensors, steps.arrays
        self.env = arrays["env"]

        def row(t: int) -> Row:
            now = slice(t, t + 1)
            return Row(
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
