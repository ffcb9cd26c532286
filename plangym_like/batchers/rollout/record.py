"""Where one group writes a fragment, and how fragments are made of what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.nests import Leaf, as_arrays, map_nest, put, take
from plangym_like.batchers.rollout.env_infos import EnvInfos, Extra
from plangym_like.batchers.rollout.fragment import Final, Fragment, Inputs, State

_FLAGS = ("fin", "terminated", "truncated")
# What is written with NumPy; the rest may have dtypes that only torch has.
_ARRAYS = ("obs", "act", "rew", *_FLAGS, "stepno", "env", "final")


def record_layout(
    n_steps: int,
    n_lanes: int,
    *,
    observation: Any,
    action: Any,
    actor: Any,
    env: Any,
    hx: Any,
    keep_final: bool,
) -> Any:
    """Return the layout of one record, a nest of `Leaf`.

    `observation`, `action`, `actor` and `env` are layouts of what one lane has in one step; `hx`
    has its full shapes, lanes along the second axis.
    """

    def rows(steps: int, layout: Any) -> Any:
        return map_nest(lambda leaf: Leaf((steps, n_lanes, *leaf.shape), leaf.dtype), layout)

    flag, number = Leaf((), torch.bool), Leaf((), torch.int64)
    reward = Leaf((), torch.float32)
    value = actor.get("value", reward)
    most = n_steps * n_lanes if keep_final else 0

    def lane_first(leaf: Leaf) -> Leaf:
        return Leaf((most, leaf.shape[0], *leaf.shape[2:]), leaf.dtype)

    return {
        "obs": rows(n_steps + 1, observation),
        "act": rows(n_steps, action),
        "rew": rows(n_steps, reward),
        **{name: rows(n_steps, flag) for name in _FLAGS},
        "stepno": rows(n_steps, number),
        "actor": rows(n_steps, actor),
        "env": rows(n_steps, env),
        "bootstrap": rows(1, value),
        "hx": hx,
        "version": rows(1, number),
        "before": {"act": rows(1, action), "rew": rows(1, reward), "fin": rows(1, flag)},
        "final": {
            "count": Leaf((1,), torch.int64),
            "t": Leaf((most,), torch.int64),
            "lane": Leaf((most,), torch.int64),
            "obs": map_nest(lambda leaf: Leaf((most, *leaf.shape), leaf.dtype), observation),
            "value": Leaf((most, *value.shape), value.dtype),
            "hx": map_nest(lane_first, hx),
        },
    }


def without_empty_rows(record: Any) -> Any:
    """Return what has been written to the memory of `record`, without the room that was not needed.

    It is a record all the same.
    """
    final = dict(record["final"])
    count = final.pop("count")
    rows = slice(0, int(count))
    return {**record, "final": {"count": count, **take(final, rows)}}


class Row(NamedTuple):
    """One step: ``obs`` to ``actor`` ``(1, B, ...)`` as the actor takes and gives them, the others
    ``(B, ...)`` as the lanes do. ``obs_out`` is what the step leads to.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor
    actor: dict[str, Any]
    act_out: Any
    obs_out: Any
    rew_out: NDArray[np.float32]
    fin_out: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    stepno: NDArray[np.int64]


class Record:
    """The memory of one fragment, cut once into the rows that its steps read and write.

    Parameters
    ----------
    memory : nest of CPU Tensor
        Of `record_layout`.

    Attributes
    ----------
    memory : nest of Tensor
    arrays : nest of array
        Over the same memory: what lanes write.
    rows : list of Row
    last_obs : nest of Tensor ``(1, B, ...)``
        What the last step leads to.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.arrays = arrays = {name: as_arrays(memory[name]) for name in _ARRAYS}
        steps = len(memory["rew"])
        self.rows = [
            Row(
                obs=take(memory["obs"], slice(t, t + 1)),
                act=take(memory["act"], slice(t, t + 1)),
                rew=memory["rew"][t : t + 1],
                fin=memory["fin"][t : t + 1],
                actor=take(memory["actor"], slice(t, t + 1)),
                act_out=take(arrays["act"], t),
                obs_out=take(arrays["obs"], t + 1),
                rew_out=arrays["rew"][t],
                fin_out=arrays["fin"][t],
                terminated=arrays["terminated"][t],
                truncated=arrays["truncated"][t],
                stepno=arrays["stepno"][t],
            )
            for t in range(steps)
        ]
        self.last_obs = take(memory["obs"], slice(steps, steps + 1))
        self._final = self.arrays["final"]
        self._num_final = 0

    def begin(self) -> None:
        """Forget the final observations of what was here before."""
        self._num_final = self._final["count"][0] = 0

    def keep_final(
        self, t: int, lanes: NDArray[np.intp], value: torch.Tensor | None, hx: Any
    ) -> None:
        """Note what step `t` has led `lanes` to, where their episodes ended.

        Parameters
        ----------
        value : Tensor ``(B, ...)``, optional
            Of all lanes; ``None`` for 0.
        hx : nest of Tensor
            Of all lanes.
        """
        obs = self.rows[t].obs_out
        final, start = self._final, self._num_final
        stop = self._num_final = start + len(lanes)
        final["t"][start:stop] = t
        final["lane"][start:stop] = lanes
        if isinstance(obs, np.ndarray):
            final["obs"][start:stop] = obs[lanes]
        else:
            put(final["obs"], slice(start, stop), take(obs, lanes))
        if value is None:
            final["value"][start:stop] = 0
        else:
            self.memory["final"]["value"][start:stop] = value[lanes]

        def keep(rows: torch.Tensor, state: torch.Tensor) -> None:
            rows[start:stop] = state.cpu()[:, lanes].transpose(0, 1)

        map_nest(keep, self.memory["final"]["hx"], hx)
        final["count"][0] = stop


Join = Callable[..., torch.Tensor]


def as_fragment(
    records: Sequence[Any],
    extras: Sequence[Sequence[Extra]],
    infos: EnvInfos,
    *,
    sticky: bool,
    keep_final: bool,
    join: Join,
) -> Fragment:
    """Return one fragment of all `records`, their lanes side by side.

    Parameters
    ----------
    records : sequence of nest of Tensor
        The memory of each.
    extras : sequence of sequence of Extra
        Of each, the infos that its columns cannot hold.
    infos : EnvInfos
    join : callable
        Given the tensors of all records that belong together, lanes along their dimension 1,
        returns one tensor.
    """
    whole = map_nest(lambda *parts: join(parts), *({**r, "final": None} for r in records))
    first, moved = 0, []
    for record, found in zip(records, extras, strict=True):
        moved += [extra._replace(lane=extra.lane + first) for extra in found]
        first += record["fin"].shape[1]
    names = ("obs", "act", "rew", "fin", "terminated", "truncated", "stepno")
    return Fragment(
        state=State(*(whole[name] for name in names)),
        actor=whole["actor"],
        env=infos.complete(whole["env"], moved, tuple(whole["fin"].shape)),
        bootstrap=whole["bootstrap"],
        hx=whole["hx"],
        version=whole["version"][0],
        before=Inputs(None, *(whole["before"][name] for name in ("act", "rew", "fin"))),
        final=_join_finals(records) if keep_final else None,
        sticky=sticky,
    )


def _join_finals(records: Sequence[Any]) -> Final:
    finals, first = [], 0
    for record in records:
        final = record["final"]
        rows = slice(0, int(final["count"]))
        parts = take({name: final[name] for name in Final._fields}, rows)
        finals.append({**parts, "lane": parts["lane"] + first})
        first += record["fin"].shape[1]
    whole = Final(**map_nest(lambda *parts: torch.cat(parts), *finals))
    return whole._replace(hx=map_nest(lambda state: state.transpose(0, 1), whole.hx))


def join_copies(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the parts side by side in new memory."""
    return torch.cat(tuple(parts), 1)


def join_views(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the only part as it is; several are joined in new memory."""
    return parts[0] if len(parts) == 1 else join_copies(parts)
