"""One `VecEnv` and the agent that plays it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.history import History
from plangym_like.batchers.episodes.slots import Section, Slots, layout_of_record
from plangym_like.batchers.episodes.vec_env import VecEnv
from plangym_like.errors import InputError


class Group:
    """Lanes that start together, and end each in its own time.

    Parameters
    ----------
    env : VecEnv
    agent : callable
        See `Agent`.
    """

    def __init__(self, env: VecEnv, agent: Any) -> None:
        self.env = env
        self.agent = agent
        self.n_envs = env.n_envs()
        self._wants_history = bool(getattr(agent, "require_history", lambda: False)())
        self._forget()

    def _forget(self) -> None:
        self._observation = DictTensor()
        self._running = torch.empty(0, dtype=torch.int64)
        self._state: DictTensor | None = None
        self._agent_info: DictTensor | None = None
        self._history: History | None = None
        self._thought: tuple[DictTensor, DictTensor, DictTensor] | None = None

    @property
    def running(self) -> NDArray[np.int64]:
        """The lanes that have not ended, ascending."""
        return self._running.numpy()

    def start(self, n: int, agent_info: DictTensor | None, env_info: DictTensor | None) -> None:
        """Start an episode in the first `n` lanes; the infos have `n` rows."""
        self._forget()
        self._observation, self._running = self.env.reset(_padded(env_info, self.n_envs))
        self._agent_info = _padded(agent_info, len(self._running))
        if n < len(self._running):
            self._stop_from(n)

    def _stop_from(self, n: int) -> None:
        """Let the lanes from `n` on run no further, if the environments can do that."""
        if self.env.stop_from(n):
            keep = self._running < n
            self._running = self._running[keep]
            self._observation = _rows(self._observation, keep)
            if self._agent_info is not None:
                self._agent_info = _rows(self._agent_info, keep)

    def forget_history(self) -> None:
        """Let the agent's history begin here."""
        self._history = None

    def inform(self, agent_info: DictTensor) -> None:
        """Tell the agent something else from now on: one row for each running lane."""
        self._agent_info = agent_info
        self._thought = None

    def layout(self) -> dict[str, Any]:
        """Return the nest of `Leaf` of one step, of an episode that has been started."""
        agent_state, action, new_state = self._think()
        before = self._before(agent_state, action)
        return layout_of_record(before, self._after(new_state, self._observation))

    def play(self, slots: Slots, places: NDArray[np.int64], t: int) -> None:
        """Step the running lanes, and write it as step `t` of their slots.

        Parameters
        ----------
        slots : Slots
        places : array
            ``[n_envs]``, the slot of each running lane.
        t : int
        """
        agent_state, action, new_state = self._think()
        self._thought = None
        before = self._before(agent_state, action)
        (outcome, was_running), (observation, still_running) = self.env.step(action)
        record = [*before, *self._after(new_state, outcome)]
        slots.write(places[self.running], t, record)
        if self._history is not None:
            self._history.add(was_running, record)
        self._state = new_state
        if len(still_running) < len(was_running):
            keep = torch.isin(was_running, still_running)
            self._state = _rows(new_state, keep)
            if self._agent_info is not None:
                self._agent_info = _rows(self._agent_info, keep)
        self._observation, self._running = observation, still_running

    def _think(self) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Return what the agent says to the current observation, asked once."""
        if self._thought is None:
            history = None
            if self._wants_history:
                self._history = self._history or History(self.n_envs)
                history = self._history.of(self._running)
            answer = self.agent(self._state, self._observation, self._agent_info, history=history)
            self._thought = _checked(answer, len(self._running), type(self.agent).__name__)
        return self._thought

    def _before(self, agent_state: DictTensor, action: DictTensor) -> list[Section]:
        return [Section("", self._observation), Section("", agent_state), Section("", action)]

    def _after(self, new_state: DictTensor, outcome: DictTensor) -> list[Section]:
        return [Section("_", new_state), Section("_", outcome)]

    def close(self) -> None:
        """Close the agent and the environments."""
        try:
            getattr(self.agent, "close", lambda: None)()
        finally:
            self.env.close()


def _padded(info: DictTensor | None, n_rows: int) -> DictTensor | None:
    """Return `info` with its last row repeated until there are `n_rows`."""
    if info is None or info.n_elems() == n_rows:
        return info
    return info[torch.arange(n_rows).clamp(max=info.n_elems() - 1)]


def _rows(fields: DictTensor, keep: torch.Tensor) -> DictTensor:
    return fields[keep] if has_tensors(fields) else fields


def _checked(answer: Any, n_rows: int, name: str) -> tuple[DictTensor, DictTensor, DictTensor]:
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise InputError(
            f"{name} must return (agent_state, action, new_state), got {type(answer).__name__}"
            + (f" of {len(answer)}" if isinstance(answer, tuple) else "")
        )
    parts = tuple(part if hasattr(part, "n_elems") else _lifted(part, name) for part in answer)
    for part, what in zip(parts, ("agent_state", "action", "new_state"), strict=True):
        if has_tensors(part) and part.n_elems() != n_rows:
            raise InputError(
                f"{name} returned {part.n_elems()} rows as its {what}, and {n_rows} environments "
                "are running"
            )
    return parts  # type: ignore[return-value]


def _lifted(part: Any, name: str) -> DictTensor:
    if isinstance(part, Mapping):
        return DictTensor(dict(part.items()))
    raise InputError(f"{name} must return DictTensors, got a {type(part).__name__}")
