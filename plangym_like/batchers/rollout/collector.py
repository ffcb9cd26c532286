"""Steps lanes and an actor in turn, and writes down what happens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.fitting import copy_actions, copy_fitting
from plangym_like.batchers.engine.lanes import Lanes
from plangym_like.batchers.engine.nests import (
    Leaf,
    as_tensors,
    copy_to,
    empty,
    leaves,
    map_nest,
    put,
    take,
    to_device,
)
from plangym_like.batchers.engine.seeding import RandomStreams, without_trace
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.env_infos import Extra, layout_of_infos, note_infos
from plangym_like.batchers.rollout.record import Record, record_layout
from plangym_like.errors import InputError


class Collector:
    """One group of lanes and the actor that answers them, from one fragment to the next.

    Parameters
    ----------
    lanes : Lanes
    actor : BaseActorModule
    n_steps : int
    lane_seeds : sequence of int, optional
        For the first reset of each environment.
    streams : RandomStreams
        From which the actor and the environments draw.
    sticky, keep_final, infos : bool
        See `plangym_like.batchers.rollout.multi.rollout`.
    device : torch.device, optional
        Where the actor is, if not on the CPU.
    beat : callable
        Called at every step.
    alone : bool
        Whether nobody but the collector uses the actor, so that its answers may be tensors without
        the bookkeeping for gradients, which are a little faster to make.
    """

    def __init__(
        self,
        lanes: Lanes,
        actor: BaseActorModule,
        n_steps: int,
        *,
        lane_seeds: Any = None,
        streams: RandomStreams,
        sticky: bool = False,
        keep_final: bool = True,
        infos: bool = True,
        device: torch.device | None = None,
        beat: Callable[[], object] = bool,
        alone: bool = False,
    ) -> None:
        self.lanes = lanes
        self._actor = actor
        self._n_steps = n_steps
        self._lane_seeds = lane_seeds
        self._streams = streams
        self._sticky = sticky
        self._keep_final = keep_final
        self._infos = infos
        self._device = device
        self._beat = beat
        self._without_gradients: Any = torch.inference_mode if alone else torch.no_grad
        self._layout: Any = None
        self._is_halfway = False
        self._extras: list[Extra] = []
        self._stepno = np.zeros(lanes.num_lanes, np.int64)

    def describe(self) -> Any:
        """Begin, and return the layout of a record.

        The actor answers once, which leaves no trace; and if infos are to be recorded, the first
        environment takes one step, of which only a reset is left.

        Raises
        ------
        InputError
            The actor's answer has not the form that it should have.
        """
        if self._layout is not None:
            return self._layout
        with self._streams.in_place():
            obs = self.lanes.start(self._lane_seeds)
        with self._streams.in_place(keep=False):
            env = self._probe_infos(obs) if self._infos else {}
        count = self.lanes.num_lanes
        self._stand_at_beginnings(obs)
        with self._streams.in_place(keep=False):
            inputs = self._there((self._obs, self._act, self._rew, self._fin))
            try:
                with self._without_gradients():
                    actor = self._probe_actor(inputs)
            except RuntimeError:
                # An actor that itself follows gradients to its answers cannot do without.
                self._without_gradients = torch.no_grad
                with torch.no_grad():
                    actor = self._probe_actor(inputs)
        self._layout = record_layout(
            self._n_steps,
            count,
            observation=self.lanes.observation,
            action=self.lanes.action,
            actor=actor,
            env=env,
            hx=map_nest(lambda state: Leaf(tuple(state.shape), state.dtype), self._hx),
            keep_final=self._keep_final,
        )
        return self._layout

    def _stand_at_beginnings(self, obs: Any) -> None:
        """Take `obs` for the first observations of new episodes in all lanes."""
        count = self.lanes.num_lanes
        self._obs = map_nest(lambda leaf: leaf[None], as_tensors(obs))
        self._act = empty(self.lanes.action, (1, count))
        self._rew = torch.zeros(1, count)
        self._fin = torch.ones(1, count, dtype=torch.bool)
        self._stepno.fill(0)

    def _probe_actor(self, inputs: Any) -> Any:
        """Set the recurrent state to its beginning and return the layout of a lane's info."""
        answer = self._actor.step(*inputs, hx=None)
        if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], dict)):
            raise InputError(
                f"{type(self._actor).__name__} is to answer (actions, hx, info), the last a dict, "
                f"but answered {_brief(answer)}"
            )
        actions, self._hx, info = answer
        count = self.lanes.num_lanes

        def check(leaf: Leaf, action: torch.Tensor) -> None:
            if tuple(action.shape) != (1, count, *leaf.shape):
                raise InputError(
                    f"actions for 1 step of {count} lanes are to have the shape "
                    f"{(1, count, *leaf.shape)}, but {type(self._actor).__name__} answered "
                    f"{tuple(action.shape)}"
                )

        try:
            map_nest(check, self.lanes.action, actions)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the actor's actions are no nest of tensors like the action space "
                f"{self.lanes.envs[0].action_space}: {_brief(actions)}"
            ) from error
        self._recurrent = bool(leaves(self._hx))
        if self._recurrent:
            self._check_hx(inputs)
            self._hx = self._reset_hx(slice(None), self._hx)

        def row(value: torch.Tensor) -> Leaf:
            if tuple(value.shape[:2]) != (1, count):
                raise InputError(
                    "what an actor returns as info begins with the axes (T, B), here "
                    f"(1, {count}); got the shape {tuple(value.shape)}"
                )
            return Leaf(tuple(value.shape[2:]), value.dtype)

        layout: dict[str, Any] = map_nest(row, info)
        if "value" in layout and not isinstance(layout["value"], Leaf):
            raise InputError(f"the actor's value is to be one tensor (T, B), got {layout['value']}")
        return layout

    def _check_hx(self, inputs: Any) -> None:
        """Refuse a recurrent state unless the lanes are the second dimension of each leaf.

        If the first dimension is as long, the actor is called once more, with one lane less.
        """
        count, states = self.lanes.num_lanes, leaves(self._hx)
        if count > 1 and any(state.shape[:2] == (count, count) for state in states):
            try:
                fewer = self._actor.step(*take(inputs, (slice(None), slice(count - 1))), hx=None)
            except Exception:  # it wants just so many lanes, and cannot be asked
                fewer = None
            if fewer is not None:
                count, states = count - 1, leaves(fewer[1])
        wrong = [state.shape for state in states if state.ndim < 2 or state.shape[1] != count]
        if wrong:
            raise InputError(
                f"the recurrent state of {type(self._actor).__name__} is to have the lanes along "
                f"the second dimension, here {count}, as in torch's recurrent layers without "
                f"batch_first; got the shape {tuple(wrong[0])}"
            )

    def _probe_infos(self, obs: Any) -> dict[str, Any]:
        """Return the layout of those infos that are numbers, known from a reset and a step."""
        found = dict(self.lanes.infos[0])
        env = self.lanes.envs[0]
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        if type(self.lanes).step_infos:
            found |= env.step(space.sample())[4]
            seeds = None if self._lane_seeds is None else [self._lane_seeds[0]]
            self.lanes.reset(obs, [0], seeds=seeds)
        return layout_of_infos(found)

    def _there(self, nest: Any) -> Any:
        return nest if self._device is None else to_device(nest, self._device)

    def collect(self, record: Record, version: int) -> Sequence[Extra]:
        """Fill `record` with the next steps of all lanes, by the actor with weights `version`.

        If the last call was stopped halfway (by a Ctrl-C, say), the lanes are in unknown states, so
        all of them begin new episodes.

        Returns
        -------
        sequence of Extra
            Values in the environments' infos for which there is no column.

        Raises
        ------
        InputError
            The actor's answer has another form than its first.
        """
        self.describe()
        with self._streams.in_place(), self._without_gradients():
            if self._is_halfway:
                self._stand_at_beginnings(self.lanes.start())
                if self._recurrent:
                    self._hx = self._reset_hx(slice(None), self._hx)
            self._is_halfway = True
            self._extras = []
            self._collect(record, version)
            self._is_halfway = False
        return self._extras

    def _collect(self, record: Record, version: int) -> None:
        actor, lanes = self._actor, self.lanes
        memory, stepno, beat = record.memory, self._stepno, self._beat
        says_infos = self._infos and type(lanes).step_infos
        self._write_beginning(record, version)
        before = memory["before"]
        act, rew, fin, hx = before["act"], before["rew"], before["fin"], self._hx
        live: NDArray[np.intp] | None = None
        for t, row in enumerate(record.rows):
            beat()
            inputs = self._there((row.obs, act, rew, fin))
            answer, hx, info = actor.step(*inputs, hx=hx)
            act, rew, fin = row.act, row.rew, row.fin
            copy_actions(act, answer)
            if info.keys() != row.actor.keys():
                raise InputError(
                    f"the actor's info has the keys {list(info)} now, and had {list(row.actor)} in "
                    "its first answer"
                )
            for key, place in row.actor.items():
                _copy(place, info[key], key)
            row.stepno[...] = stepno
            if live is None or len(live):
                lanes.step(
                    row.act_out, row.obs_out, row.rew_out, row.terminated, row.truncated, live
                )
            if live is not None:
                self._freeze(record, t, live)
            np.logical_or(row.terminated, row.truncated, out=row.fin_out)
            if says_infos:
                self._note_infos(record.arrays["env"], t, live)
            stepno += 1
            if np.count_nonzero(row.fin_out):
                hx, live = self._end_episodes(record, t, live, hx)
        # Cloned, since the actor may have returned a view of what it was given.
        self._hx = _clone(hx)
        self._obs = _clone(record.last_obs)
        self._act, self._rew, self._fin = _clone(act), rew.clone(), fin.clone()
        if "value" in record.memory["actor"]:
            inputs = self._there((record.last_obs, act, rew, fin))
            _copy(memory["bootstrap"], actor.value(*inputs, hx=hx), "value")

    def _write_beginning(self, record: Record, version: int) -> None:
        memory = record.memory
        copy_to(record.rows[0].obs, self._obs)
        copy_to(memory["before"], {"act": self._act, "rew": self._rew, "fin": self._fin})
        _copy(memory["hx"], self._hx, "recurrent state")
        memory["version"].fill_(version)
        record.begin()
        # What an info lacks is 0, whatever was here before.
        map_nest(torch.Tensor.zero_, memory["env"])

    def _end_episodes(
        self, record: Record, t: int, live: NDArray[np.intp] | None, hx: Any
    ) -> tuple[Any, NDArray[np.intp] | None]:
        """Begin anew where step `t` ended an episode, or where one is frozen."""
        row = record.rows[t]
        (ended,) = row.fin_out.nonzero()
        fresh = ended if live is None else np.intersect1d(ended, live, assume_unique=True)
        if len(fresh):
            if self._keep_final:
                record.keep_final(t, fresh, self._final_value(record, t, fresh, hx), hx)
            self.lanes.reset(row.obs_out, fresh)
        self._stepno[ended] = 0
        if self._recurrent:
            hx = self._reset_hx(torch.from_numpy(ended), hx)
        if self._sticky:
            live = np.flatnonzero(~row.fin_out)
        return hx, live

    def _final_value(
        self, record: Record, t: int, ended: NDArray[np.intp], hx: Any
    ) -> torch.Tensor | None:
        """Return the critic's estimates ``(B, ...)`` of what would have come after step `t`.

        They are 0 where an episode terminated; ``None`` means that all are 0.
        """
        row = record.rows[t]
        if not np.count_nonzero(row.truncated) or "value" not in row.actor:
            return None
        cut = row.truncated & ~row.terminated
        if not np.count_nonzero(cut[ended]):
            return None
        obs = take(record.memory["obs"], slice(t + 1, t + 2))
        # What is observed there is not the first of a new episode.
        inputs = self._there((obs, row.act, row.rew, torch.zeros_like(row.fin)))
        with without_trace():
            value = self._actor.value(*inputs, hx=hx)[0].cpu()
        return torch.where(_like(torch.from_numpy(cut), value), value, torch.zeros_like(value))

    def _freeze(self, record: Record, t: int, live: NDArray[np.intp]) -> None:
        """Leave the lanes that are not `live` as they were in step `t` - 1, with no reward."""
        row, last = record.rows[t], record.rows[t - 1]
        frozen = np.setdiff1d(np.arange(self.lanes.num_lanes), live, assume_unique=True)
        put(row.obs_out, frozen, take(last.obs_out, frozen))
        row.rew_out[frozen] = 0.0
        row.terminated[frozen] = last.terminated[frozen]
        row.truncated[frozen] = last.truncated[frozen]

    def _note_infos(self, env: Any, t: int, live: NDArray[np.intp] | None) -> None:
        infos = self.lanes.infos
        for lane in range(self.lanes.num_lanes) if live is None else live:
            info = infos[lane]
            if info:
                note_infos(env, info, t, int(lane), self._extras)

    def _reset_hx(self, lanes: Any, hx: Any) -> Any:
        fresh = self._actor.reset(lanes, hx)
        return hx if fresh is None else fresh


def _copy(rows: Any, value: Any, name: str) -> None:
    """Copy an answer of the actor, which must have the form of its first answer."""
    if type(rows) is torch.Tensor:
        if type(value) is torch.Tensor and value.dtype is rows.dtype and value.shape == rows.shape:
            rows.copy_(value)
        else:
            copy_fitting(rows, value, f"the actor's {name!r}")
        return
    try:
        map_nest(lambda part, leaf: copy_fitting(part, leaf, f"the actor's {name!r}"), rows, value)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the actor's {name!r} is another nest than at first: {_brief(value)}"
        ) from error


def _like(flags: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return flags.reshape(*flags.shape, *(1,) * (value.ndim - flags.ndim))


def _clone(nest: Any) -> Any:
    return map_nest(lambda tensor: tensor.clone(), nest)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."
