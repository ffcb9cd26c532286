"""`EpisodeLoop`: steps one `VecEnv` with its agent; `EpisodeWorker` hosts it in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from plangym_like.batchers.stepping import StartStates
from plangym_like.batchers.workers.backend import GroupContext
from plangym_like.errors import ClosedError, InputError
from plangym_like.vector.tree import Leaf, take, tree_leaves, tree_map


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


# The name of the agent's weights in shared memory.
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

    `sent` is the argument itself, or ``None`` if the argument is in shared memory.
    """

    version: int
    sent: Any = None


class Part(NamedTuple):
    """Describes the steps in a filled buffer; `buffer` is its index.

    Lane i of the buffer holds ``lengths[i]`` steps for row ``first_row + i`` of the result, from
    time `start` on.
    """

    buffer: int
    first_row: int
    start: int
    lengths: list[int]


class Progress(NamedTuple):
    """A group's report after one quantum: the filled buffers, and whether the group has finished.

    If `layout` is not ``None``, the group needs buffers of this layout before it can continue.
    """

    parts: list[Part]
    finished: bool
    n_envs: int
    n_running: int
    layout: Any


class EpisodeWorker:
    """Plays the episodes of one group in quanta; each quantum is one call of `collect`.

    A quantum ends when all steps are done, when no buffer is free, or when its time is up. The
    owner reads the filled buffers and gives them back with the next quantum.

    Parameters
    ----------
    plan : EpisodePlan
    context : GroupContext
    """

    def __init__(self, plan: EpisodePlan, context: GroupContext) -> None:
        self._context = context
        self._plan = plan
        self._buffers: list[TimeBuffer] = []
        self._wanted: Any = None
        self._free: list[int] = []
        self._parts: list[Part] = []
        self._work: Iterator[bool] = iter(())
        self._version = 0
        env, seed = self._make_env()
        (noise, _), *_ = seed_groups(seed, [0])
        self._streams = RandomStreams(noise)
        # All groups begin with the same agent, but then each draws its own random numbers.
        (common, _), *_ = seed_groups(plan.seeds[0], [0])
        with RandomStreams(common).in_place():
            self._loop = EpisodeLoop(env, plan.create_agent(**plan.agent_args))

    @property
    def _num_lanes(self) -> int:
        """The number of environments in all groups together."""
        return self._loop.n_envs * len(self._plan.seeds)

    def _make_env(self) -> tuple[VecEnv, int]:
        number, given = self._context.group, self._plan.seeds
        env = self._env_of(given[number])
        seed = disjoint_seeds(given, env.n_envs())[number]
        if seed != given[number]:
            env.close()
            env = self._env_of(seed)
        if env.endless and not self._plan.endless:
            raise InputError(
                f"the episodes of a {type(env).__name__} never end; use a Batcher for it"
            )
        return env, seed

    def _env_of(self, seed: int) -> VecEnv:
        (words, _), *_ = seed_groups(seed, [0])
        with RandomStreams(words).in_place():
            env = self._plan.create_env(**{**self._plan.env_args, "seed": seed})
        if not isinstance(env, VecEnv):
            raise InputError(f"create_env must return a VecEnv, got a {type(env).__name__}")
        return env

    def count_envs(self) -> int:
        """Return how many environments the group has."""
        return self._loop.n_envs

    def episodes(self, first_row: int, num: int, args: EpisodeArgs, weights: Weights) -> None:
        """Prepare to play `num` whole episodes, which fill the result from row `first_row` on."""
        self._update(weights)
        self._work = self._play_episodes(first_row, num, args)

    def reset(self, args: EpisodeArgs) -> None:
        """Start an episode in each of the group's lanes; `args` has rows for all groups' lanes."""
        args.check(self._num_lanes, "environments")
        with self._streams.in_place(), torch.no_grad():
            self._loop.start(self._loop.n_envs, args.rows(self._rows))

    @property
    def _rows(self) -> slice:
        """The rows of this group among the rows of all groups."""
        first = self._context.group * self._loop.n_envs
        return slice(first, first + self._loop.n_envs)

    def chunk(self, num_lanes: int | None, agent_info: DictTensor | None, weights: Weights) -> None:
        """Prepare to step the running lanes until one buffer is full.

        If `num_lanes` is given, it must be the number of lanes in all groups together.
        """
        if num_lanes is not None and num_lanes != self._num_lanes:
            raise InputError(
                f"a Batcher plays all of its {self._num_lanes} environments, not {num_lanes}; an "
                "EpisodeBatcher plays any number of episodes"
            )
        self._update(weights)
        self._loop.forget_history()
        if agent_info is not None:
            EpisodeArgs(agent_info).check(self._num_lanes, "environments")
            self._loop.inform(agent_info[self._rows][torch.as_tensor(self._loop.running)])
        self._work = self._play_chunk()

    def _update(self, weights: Weights) -> None:
        if weights.version == self._version:
            return
        content = weights.sent
        if content is None:
            content = tree_map(torch.clone, self._context.memory[WEIGHTS])
        with self._streams.in_place():
            self._loop.agent.update(content)
        # Set last, so that an update that was interrupted by Ctrl-C is repeated.
        self._version = weights.version

    def collect(self, freed: Sequence[int], seconds: float | None = None) -> Progress:
        """Play one quantum of at most `seconds`.

        Parameters
        ----------
        freed : sequence of int
            The indices of buffers that the owner has read.
        """
        self._free.extend(freed)
        until = None if seconds is None else time.monotonic() + seconds
        finished = True
        try:
            with self._streams.in_place(), torch.no_grad():
                for waits in self._work:
                    self._context.beat()
                    if waits or (until is not None and time.monotonic() > until):
                        finished = False
                        break
        except BaseException as error:
            self._work = _stopped_by(error)
            raise
        parts, self._parts = self._parts, []
        n_running = len(self._loop.running)
        return Progress(parts, finished, self._loop.n_envs, n_running, self._wanted)

    def _play_episodes(self, first_row: int, num: int, args: EpisodeArgs) -> Iterator[bool]:
        loop = self._loop
        for begin in range(0, num, loop.n_envs):
            n = min(loop.n_envs, num - begin)
            loop.start(n, args.rows(slice(begin, begin + n)))
            start = 0
            while (loop.running < n).any():
                yield from self._fill_buffer(first_row + begin, start, n)
                start += self._plan.n_timesteps

    def _play_chunk(self) -> Iterator[bool]:
        if len(self._loop.running):
            yield from self._fill_buffer(self._rows.start, 0, self._loop.n_envs)

    def _fill_buffer(self, first_row: int, start: int, n_wanted: int) -> Iterator[bool]:
        """Fill a buffer with steps of the running lanes; report only the first `n_wanted` lanes.

        Yield ``True`` while no buffer is free, and ``False`` after every step.
        """
        while not self._find_free():
            yield True
        index = self._free.pop()
        lengths = np.zeros(self._loop.n_envs, np.int64)
        for t in range(self._plan.n_timesteps):
            running = self._loop.running
            if not (running < n_wanted).any():
                break
            lengths[running] += 1
            self._loop.step(self._buffers[index], t)
            yield False
        self._parts.append(Part(index, first_row, start, lengths[:n_wanted].tolist()))
        filled = slice(0, int(np.max(lengths)))
        name = buffers_name(self._context.group)
        self._context.publish(name, index, lambda steps: take(steps, filled))

    def _find_free(self) -> bool:
        """Return whether a buffer is free; request buffers if there are none yet."""
        if not self._buffers:
            memory = self._context.memory.get(buffers_name(self._context.group))
            if memory is None:
                if self._wanted is None:
                    self._wanted = self._loop.layout()
                return False
            num_buffers = len(tree_leaves(memory)[0])
            self._buffers = [TimeBuffer(take(memory, index)) for index in range(num_buffers)]
            self._free, self._wanted = list(range(num_buffers)), None
        return bool(self._free)

    def close(self) -> None:
        """Close the agent and the environments."""
        self._loop.close()


def _stopped_by(error: BaseException) -> Iterator[bool]:
    """Return an iterator that always raises `ClosedError`, because `error` interrupted a step."""
    message = f"a {type(error).__name__} stopped the episodes in the middle of a step"

    def fail() -> bool:
        raise ClosedError(message)

    return iter(fail, None)


def buffers_name(group: int) -> str:
    """Return the name of a group's buffers in shared memory."""
    return f"steps-{group}"


def disjoint_seeds(seeds: Sequence[int], n_envs: int) -> list[int]:
    """Return `seeds`, changed where two environments would have the same seed.

    Environment i of group k has the seed ``seeds[k] + i``. A group that would repeat a seed of an
    earlier group gets seeds greater than all others.

    >>> disjoint_seeds([1, 2, 100], 4)
    [1, 104, 100]
    """
    taken: list[int] = []
    next_free = max(seeds) + n_envs
    for seed in seeds:
        if any(abs(seed - other) < n_envs for other in taken):
            seed, next_free = next_free, next_free + n_envs
        taken.append(seed)
    return taken
