"""`EpisodeLoop`: steps one `VecEnv` with its agent; `EpisodeWorker` hosts it in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from plangym_like.batchers.buffers import TimeBuffer
from plangym_like.batchers.episodes.envs import GymEnv, VecEnv
from plangym_like.batchers.episodes.trajectories import DictTensor, Trajectories, has_tensors
from plangym_like.batchers.randomness import RandomStreams, seed_groups
from plangym_like.batchers.workers.backend import GroupContext
from plangym_like.errors import ClosedError, InputError
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import Leaf, take, tree_map


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


# The name of the agent's weights, for `GroupContext.load`.
WEIGHTS = "weights"


@dataclass(frozen=True)
class EpisodePlan:
    """The user's arguments, which all groups share, and the seed of each group."""

    create_agent: Callable[..., Any]
    agent_args: Mapping[str, Any]
    create_env: Callable[..., VecEnv]
    env_args: Mapping[str, Any]
    seeds: tuple[int, ...]
    n_timesteps: int
    endless: bool


def first_env(
    create_env: Callable[..., VecEnv], env_args: Mapping[str, Any], seed: int
) -> tuple[Any, Callable[[], Any]]:
    """Return the first environment of a new group, and a function that closes the group's.

    Raises
    ------
    TypeError
        The groups are not `GymEnv`s.
    """
    group = create_env(**{**env_args, "seed": seed})
    if not isinstance(group, GymEnv):
        raise TypeError(f"a {type(group).__name__} has no Gymnasium environments")
    return group.first_env, group.close


class Weights(NamedTuple):
    """An argument for the agent's `update`, and its version number.

    `sent` is the argument itself, or ``None`` if the argument is published as `WEIGHTS`.
    """

    version: int
    sent: Any = None


class Begun(NamedTuple):
    """The number of environments of a group that has begun to play, and the layout of a step.

    `layout` is ``None`` if the owner knows it already, or if no environment is running.
    """

    n_envs: int
    layout: Any


class Part(NamedTuple):
    """Describes the steps in a filled buffer.

    Lane i of the buffer holds ``lengths[i]`` steps for row ``first_row + i`` of the result, from
    time `start` on. If `finished` is true, no further buffer is needed.
    """

    first_row: int
    start: int
    lengths: list[int]
    finished: bool
    n_running: int


class EpisodeWorker:
    """Plays the episodes of one group; each call of `collect` fills one buffer.

    Parameters
    ----------
    plan : EpisodePlan
    context : GroupContext
    """

    def __init__(self, plan: EpisodePlan, context: GroupContext) -> None:
        self._context = context
        self._plan = plan
        self._buffers: dict[int, TimeBuffer] = {}
        # What each buffer is to hold: the first row, the first time, and the number of lanes.
        self._segments: Iterator[tuple[int, int, int]] = iter(())
        self._segment: tuple[int, int, int] | None = None
        self._stopped_by: BaseException | None = None
        self._version = 0
        (noise, _), *_ = seed_groups(plan.seeds[context.group], [0])
        with RandomStreams(noise).in_place():
            env = plan.create_env(**{**plan.env_args, "seed": plan.seeds[context.group]})
        if not isinstance(env, VecEnv):
            raise InputError(f"create_env must return a VecEnv, got a {type(env).__name__}")
        if env.endless and not plan.endless:
            raise InputError(
                f"the episodes of a {type(env).__name__} never end; use a Batcher for it"
            )
        self._streams = RandomStreams(noise)
        # All groups begin with the same agent, but then each draws its own random numbers.
        (common, _), *_ = seed_groups(plan.seeds[0], [0])
        with RandomStreams(common).in_place():
            self._loop = EpisodeLoop(env, plan.create_agent(**plan.agent_args))
        first = context.group * self._loop.n_envs
        # The rows of this group among the rows of all groups, in a `Batcher`.
        self._rows = slice(first, first + self._loop.n_envs)

    def count_envs(self) -> int:
        """Return how many environments the group has."""
        return self._loop.n_envs

    def episodes(self, first_row: int, num: int, args: EpisodeArgs, weights: Weights) -> Begun:
        """Begin to play `num` whole episodes, which fill the result from row `first_row` on."""
        return self._begin(self._segments_of_episodes(first_row, num, args), weights)

    def reset(self, args: EpisodeArgs) -> None:
        """Start an episode in each of the group's lanes; `args` has rows for all groups' lanes."""
        with self._streams.in_place(), torch.no_grad():
            self._loop.start(self._loop.n_envs, args.rows(self._rows))

    def chunk(self, agent_info: DictTensor | None, weights: Weights) -> Begun:
        """Begin to step the running lanes until one buffer is full.

        `agent_info` has rows for all groups' lanes.
        """
        self._loop.forget_history()
        if agent_info is not None:
            self._loop.inform(agent_info[self._rows][torch.as_tensor(self._loop.running)])
        n_envs = self._loop.n_envs if len(self._loop.running) else 0
        return self._begin(iter([(self._rows.start, 0, n_envs)] if n_envs else []), weights)

    def _begin(self, segments: Iterator[tuple[int, int, int]], weights: Weights) -> Begun:
        self._update(weights)
        layout = None
        with self._streams.in_place(), torch.no_grad():
            self._segments, self._segment = segments, next(segments, None)
            if self._segment is not None and not self._buffers:
                layout = self._loop.layout()
        return Begun(self._loop.n_envs, layout)

    def _segments_of_episodes(
        self, first_row: int, num: int, args: EpisodeArgs
    ) -> Iterator[tuple[int, int, int]]:
        loop = self._loop
        for begin in range(0, num, loop.n_envs):
            n = min(loop.n_envs, num - begin)
            loop.start(n, args.rows(slice(begin, begin + n)))
            start = 0
            while (loop.running < n).any():
                yield first_row + begin, start, n
                start += self._plan.n_timesteps

    def _update(self, weights: Weights) -> None:
        if weights.version == self._version:
            return
        content = weights.sent
        if content is None:
            loaded = self._context.load(WEIGHTS, -1)
            assert loaded is not None
            _, content = loaded
        with self._streams.in_place():
            self._loop.agent.update(content)
        # Set last, so that an update that was interrupted by Ctrl-C is repeated.
        self._version = weights.version

    def collect(self, index: int) -> Part:
        """Fill buffer `index` with steps of the running lanes.

        Raises
        ------
        ClosedError
            An earlier call was stopped in the middle of a step.
        """
        if self._stopped_by is not None:
            name = type(self._stopped_by).__name__
            raise ClosedError(f"a {name} stopped the episodes in the middle of a step")
        if self._segment is None:
            return Part(0, 0, [], finished=True, n_running=len(self._loop.running))
        first_row, start, n_wanted = self._segment
        try:
            with self._streams.in_place(), torch.no_grad():
                lengths = self._fill(index, n_wanted)
                self._segment = next(self._segments, None)
        except BaseException as error:
            self._stopped_by = error
            raise
        filled = slice(0, int(np.max(lengths)))
        name = buffers_name(self._context.group)
        self._context.send(name, index, lambda steps: take(steps, filled))
        return Part(
            first_row,
            start,
            lengths[:n_wanted].tolist(),
            finished=self._segment is None,
            n_running=len(self._loop.running),
        )

    def _fill(self, index: int, n_wanted: int) -> NDArray[np.int64]:
        """Step until the buffer is full or none of the first `n_wanted` lanes is running.

        Return the number of steps of each lane.
        """
        memory = self._context.buffer(buffers_name(self._context.group), index)
        # Several indices may mean the same memory.
        buffer = self._buffers.get(id(memory))
        if buffer is None:
            buffer = self._buffers[id(memory)] = TimeBuffer(memory)
        lengths = np.zeros(self._loop.n_envs, np.int64)
        for t in range(self._plan.n_timesteps):
            running = self._loop.running
            if not (running < n_wanted).any():
                break
            self._context.beat()
            lengths[running] += 1
            self._loop.step(buffer, t)
        return lengths

    def close(self) -> None:
        """Close the agent and the environments."""
        self._loop.close()


def buffers_name(group: int) -> str:
    """Return the name of a group's buffers."""
    return f"steps-{group}"
