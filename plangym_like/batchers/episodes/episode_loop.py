"""`EpisodeLoop`: steps one `VecEnv` with its agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.batchers.episodes.vec_env import VecEnv
from plangym_like.batchers.start_states import StartStates
from plangym_like.batchers.time_buffer import TimeBuffer
from plangym_like.errors import InputError
from plangym_like.vector.tree import Leaf, tree_map


class EpisodeArgs(NamedTuple):
    """The arguments of episodes, one row per episode; ``None`` for arguments that were not given.

    Attributes
    ----------
    agent_info, env_info : DictTensor, optional
    states : StartStates, optional
        The states that the episodes begin in.
    """

    agent_info: DictTensor | None = None
    env_info: DictTensor | None = None
    states: StartStates | None = None

    def rows(self, rows: Any) -> EpisodeArgs:
        """Return these arguments, reduced to the given `rows`."""
        parts: list[Any] = [part if part is None else part[rows] for part in self]
        return EpisodeArgs(*parts)

    def check(self, num_rows: int, what: str) -> None:
        """Raise an `InputError` unless every argument that was given has `num_rows` rows."""
        for name, part in zip(self._fields, self, strict=True):
            if part is not None and len(part) != num_rows:
                raise InputError(f"{name} has {len(part)} rows for {num_rows} {what}")


class EpisodeLoop:
    """Steps environments with one agent. Their episodes start together and end one by one.

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
        self._history: TimeBuffer | None = None
        self._answer: tuple[DictTensor, DictTensor, DictTensor] | None = None

    @property
    def running(self) -> NDArray[np.int64]:
        """The environments whose episodes have not ended, in ascending order."""
        return self._running.numpy()

    def start(self, n: int, args: EpisodeArgs) -> None:
        """Start an episode in each of the first `n` environments; `args` has one row for each."""
        self._forget()
        # The environments after the first n get the arguments of environment n - 1.
        everyone = args.rows(torch.arange(self.n_envs).clamp(max=n - 1))
        states = {} if everyone.states is None else {"states": everyone.states}
        self._observation, self._running = self.env.reset(everyone.env_info, **states)
        self._agent_info = everyone.agent_info
        if n < len(self._running) and self.env.stop_from(n):
            self._keep(self._running < n)

    def _keep(self, rows: torch.Tensor) -> None:
        """Keep only the running environments that `rows` selects."""
        self._running = self._running[rows]
        self._observation = _rows(self._observation, rows)
        if self._agent_info is not None:
            self._agent_info = _rows(self._agent_info, rows)

    def forget_history(self) -> None:
        """Drop the agent's history; a new one begins with the next step."""
        self._history = None

    def inform(self, agent_info: DictTensor) -> None:
        """Use `agent_info` from the next step on; it has one row for each running environment."""
        self._agent_info = agent_info
        self._answer = None

    def layout(self) -> Any:
        """Return the layout of one step, derived from the agent's first output."""
        # A step's outcome has the form of an observation.
        return _layout(self._record(self._ask(), self._observation))

    def step(self, buffer: TimeBuffer, t: int) -> None:
        """Step the running environments, and write the results as step `t` of `buffer`."""
        answer = self._ask()
        self._answer = None
        _, action, new_state = answer
        (outcome, was_running), (observation, still_running) = self.env.step(action)
        record = self._record(answer, outcome)
        buffer.write(t, self.running, record)
        if self._history is not None:
            history = self._history
            if history.num_steps == history.capacity:
                history.make_room(2 * history.capacity)
            history.write(history.num_steps, was_running.numpy(), record)
            history.num_steps += 1
        self._state = new_state
        if len(still_running) < len(was_running):
            keep = torch.isin(was_running, still_running)
            self._state = _rows(new_state, keep)
            if self._agent_info is not None:
                self._agent_info = _rows(self._agent_info, keep)
        self._observation, self._running = observation, still_running

    def _ask(self) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Return the agent's output for the current observation; it is computed only once."""
        if self._answer is None:
            history = self._history_of_running() if self._wants_history else None
            answer = self.agent(self._state, self._observation, self._agent_info, history=history)
            self._answer = _checked(answer, len(self._running), type(self.agent).__name__)
            if self._wants_history and self._history is None:
                self._history = TimeBuffer.growing(self.layout(), self.n_envs)
        return self._answer

    def _history_of_running(self) -> Trajectories | None:
        history = self._history
        if history is None or not history.num_steps:
            return None
        n, steps = history.num_steps, history.tensors
        batch_first = tree_map(lambda tensor: tensor[:n, self._running].transpose(0, 1), steps)
        size = [len(self._running), n]
        return Trajectories(TensorDict(batch_first, batch_size=size), torch.full(size[:1], n))

    def _record(
        self, answer: tuple[DictTensor, DictTensor, DictTensor], outcome: DictTensor
    ) -> dict[str, Any]:
        """Return the fields of one step.

        The names of the fields that hold the results of the action (the agent's new state and the
        outcome) begin with ``_``.
        """
        agent_state, action, new_state = answer
        record: dict[str, Any] = {}
        for prefix, parts in (
            ("", (self._observation, agent_state, action)),
            ("_", (new_state, outcome)),
        ):
            for key, value in (pair for part in parts for pair in part.items()):
                name = prefix + key
                if name in record:
                    raise InputError(
                        f"two fields of a step are called {name!r}; observations, agent states "
                        "and the fields of an agent's action need different names"
                    )
                record[name] = value
        return record

    def close(self) -> None:
        """Close the agent and the environments."""
        try:
            getattr(self.agent, "close", lambda: None)()
        finally:
            self.env.close()


def _layout(fields: Any) -> Any:
    if isinstance(fields, torch.Tensor):
        return Leaf(tuple(fields.shape[1:]), fields.dtype)
    return {key: _layout(value) for key, value in fields.items()}


def _rows(fields: DictTensor, keep: torch.Tensor) -> DictTensor:
    return fields[keep] if has_tensors(fields) else fields


def _checked(answer: Any, n_rows: int, name: str) -> tuple[DictTensor, DictTensor, DictTensor]:
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise InputError(
            f"{name} must return (agent_state, action, new_state), got {type(answer).__name__}"
            + (f" of {len(answer)}" if isinstance(answer, tuple) else "")
        )
    parts = tuple(part if hasattr(part, "n_elems") else _as_fields(part, name) for part in answer)
    for part, what in zip(parts, ("agent_state", "action", "new_state"), strict=True):
        if has_tensors(part) and part.n_elems() != n_rows:
            raise InputError(
                f"{name} returned {part.n_elems()} rows as its {what}, and {n_rows} environments "
                "are running"
            )
    return parts  # type: ignore[return-value]


def _as_fields(part: Any, name: str) -> DictTensor:
    if isinstance(part, Mapping):
        return DictTensor(dict(part.items()))
    raise InputError(f"{name} must return DictTensors, got a {type(part).__name__}")
