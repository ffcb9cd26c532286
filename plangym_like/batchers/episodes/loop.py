"""`Agent`: chooses actions; `EpisodeWorker`: steps a `VecEnv` with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.envs import VecEnv
from plangym_like.batchers.episodes.trajectories import DictTensor, Steps, Trajectories, has_tensors
from plangym_like.batchers.randomness import RandomStreams, seed_groups
from plangym_like.batchers.trees import as_arrays, named_leaves
from plangym_like.batchers.workers.hosted import GroupContext
from plangym_like.errors import ClosedError, InputError
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import take, tree_map


class Agent:
    """A policy: computes an action and a new state from its current state and an observation.

    Between two calls, the agent object keeps only its weights. The state that it returns, with one
    row for each environment, holds all that it remembers of the episodes. Inherit from this class,
    and from `torch.nn.Module` if the agent has weights (``class Mine(Agent, torch.nn.Module)``).
    Any other object with the same `__call__` and `update` can be used as well.

    Examples
    --------
    >>> import torch
    >>> class Right(Agent):
    ...     def __call__(self, state, observation, agent_info=None, history=None):
    ...         action = torch.ones(observation.n_elems(), dtype=torch.int64)
    ...         return DictTensor(), DictTensor({"action": action}), DictTensor()
    >>> state, action, new_state = Right()(None, DictTensor({"frame": torch.zeros(3, 4)}))
    >>> action["action"]
    tensor([1, 1, 1])
    """

    def require_history(self) -> bool:
        """Return whether `__call__` needs the steps of the episode so far, in `history`."""
        return False

    def __call__(
        self,
        state: DictTensor | None,
        observation: DictTensor,
        agent_info: DictTensor | None = None,
        history: Trajectories | None = None,
    ) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Choose an action in each of ``B`` environments.

        Parameters
        ----------
        state : DictTensor or None
            The new state that the last call returned, ``[B, ...]``; ``None`` at the beginning of
            the episodes.
        observation : DictTensor
            The current observations, ``[B, ...]``.
        agent_info : DictTensor, optional
            The `agent_info` that was passed to `execute`, reduced to the rows of these episodes.
        history : Trajectories, optional
            The steps of these episodes so far, ``[B, t, ...]``, if `require_history` returns true.
            A `Batcher` gives only the steps of the current chunk. ``None`` before the first step.

        Returns
        -------
        agent_state : DictTensor
            The state that the action was chosen from: `state`, or the first state of an episode.
        action : DictTensor
            The field ``"action"`` is sent to the environments. Other fields are only recorded.
        new_state : DictTensor
            The state for the next call. Both states are ``DictTensor({})`` for an agent without
            memory.
        """
        raise NotImplementedError

    def update(self, state_dict: Mapping[str, Any]) -> None:
        """Load `state_dict`, which is the argument of the batcher's `update`.

        By default, an agent that is a torch module loads it as its weights; other agents raise an
        error.
        """
        load = getattr(self, "load_state_dict", None)
        if load is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no method update(state_dict), and no load_state_dict, "
                "as a torch module has: define one of these methods"
            )
        load(state_dict)

    def close(self) -> None:
        """Release the agent's resources."""


def replay_agent(
    agent: Any, trajectories: Trajectories, state: DictTensor | None = None
) -> TensorDict:
    """Call `agent` on the recorded steps again, with gradients, and return its outputs.

    The steps are replayed in order, and each call gets the state that the previous call returned.

    The outputs equal the recorded ones, except for random draws of the agent. After the end of a
    trajectory the agent gets zeros; `Trajectories.mask` says which outputs are valid.

    Parameters
    ----------
    agent : callable
        See `Agent`; it must not require a history.
    trajectories : Trajectories
    state : DictTensor, optional
        ``[B, ...]``, the agent's state before the first step; ``None`` if this step begins the
        episodes. For a later chunk, take the recorded state, for example
        ``DictTensor({"memory": chunk["memory"][:, 0]})``.

    Returns
    -------
    TensorDict
        ``[B, T, ...]``, the fields of the agent's actions, for example ``replayed["logits"]``.

    Examples
    --------
    >>> weight = torch.tensor(2.0, requires_grad=True)
    >>> def agent(state, observation, agent_info=None, history=None):
    ...     return DictTensor(), DictTensor({"action": weight * observation["frame"]}), DictTensor()
    >>> trajectories = Trajectories({"frame": torch.ones(3, 5)}, torch.tensor([5, 5, 2]))
    >>> actions = replay_agent(agent, trajectories)["action"]
    >>> actions[trajectories.mask()].sum().backward()
    >>> weight.grad
    tensor(12.)
    """
    info = trajectories.agent_info if has_tensors(trajectories.agent_info) else None
    answers = []
    for t in range(trajectories.n_timesteps):
        _, action, state = agent(state, trajectories.temporal_index(t), info)
        answers.append(TensorDict(dict(action.items()), batch_size=action.batch_size))
    replayed: Any = torch.stack(answers, 1)  # type: ignore[arg-type]
    return replayed  # type: ignore[no-any-return]


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


# The names that lead to a field of a step.
Path = tuple[str, ...]


class StepRecord:
    """The steps of `n_envs` environments; all have the fields, shapes and dtypes of the first.

    Parameters
    ----------
    n_envs : int

    Attributes
    ----------
    num_steps : int
        The number of steps so far.
    """

    def __init__(self, n_envs: int) -> None:
        self.num_steps = 0
        self._n_envs = n_envs
        self._lanes: list[torch.Tensor] = []
        self._form: dict[Path, Any] = {}
        self._values: dict[Path, list[torch.Tensor]] = {}

    def append(self, lanes: torch.Tensor, step: Any) -> None:
        """Add the fields ``(n, ...)`` of the environments `lanes`, an int64 tensor ``(n,)``.

        Raises
        ------
        InputError
            A field is missing or new, or its shape or dtype differs from the first step's.
        """
        fields = dict(named_leaves(step))
        form = {
            path: (value.dtype, value.shape[1:] if len(value) == len(lanes) else value.shape)
            for path, value in fields.items()
        }
        if not self.num_steps:
            self._form, self._values = form, {path: [] for path in form}
        elif form != self._form:
            raise _changed(self._form, form)
        for path, value in fields.items():
            # Copied, since the agent may change its tensors.
            self._values[path].append(value.detach().cpu().clone())
        self._lanes.append(lanes)
        self.num_steps += 1

    def tensors(self) -> dict[str, Any]:
        """Return a tree of tensors ``(T, n_envs, ...)``, with zeros where an environment waited."""
        lanes = torch.cat(self._lanes)
        counts = torch.tensor([len(each) for each in self._lanes])
        times = torch.arange(self.num_steps).repeat_interleave(counts)
        tree: dict[str, Any] = {}
        for path, values in self._values.items():
            joined = torch.cat(values)
            shape = (self.num_steps, self._n_envs, *joined.shape[1:])
            if len(lanes) == self.num_steps * self._n_envs:
                column = joined.view(shape)
            else:
                column = joined.new_zeros(shape)
                column[times, lanes] = joined
            inner = tree
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = column
        return tree


def _changed(first: dict[Path, Any], now: dict[Path, Any]) -> InputError:
    def told(form: dict[Path, Any], path: Path) -> str:
        if path not in form:
            return "missing"
        dtype, shape = form[path]
        return f"{dtype} of shape {tuple(shape)}"

    found = [
        f"{'/'.join(path)!r} is {told(now, path)} and was {told(first, path)}"
        for path in first | now
        if now.get(path) != first.get(path)
    ]
    return InputError(
        f"a step differs from the first step: {', '.join(found)}. All steps must have the same "
        "fields, each with one row per running environment"
    )


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


class Played(NamedTuple):
    """What a group has played.

    Attributes
    ----------
    n_envs, n_running : int
        How many environments the group has, and how many of them are still running.
    steps : list of Steps
        With arrays in place of tensors; the rows are those of the result.
    """

    n_envs: int
    n_running: int
    steps: list[Steps]


class EpisodeWorker:
    """Steps the environments of one group with one agent.

    Their episodes start together and end one by one.

    Parameters
    ----------
    plan : EpisodePlan
    context : GroupContext
    """

    def __init__(self, plan: EpisodePlan, context: GroupContext) -> None:
        self._context = context
        self._plan = plan
        self._stopped_by: BaseException | None = None
        self._version = -1
        (noise, _), *_ = seed_groups(plan.seeds[context.group], [0])
        with RandomStreams(noise).in_place():
            self._env = env = plan.create_env(
                **{**plan.env_args, "seed": plan.seeds[context.group]}
            )
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
            self._agent = plan.create_agent(**plan.agent_args)
        self._wants_history = bool(getattr(self._agent, "require_history", lambda: False)())
        self._n_envs = env.n_envs()
        first = context.group * self._n_envs
        # The rows of this group among the rows of all groups, in a `Batcher`.
        self._rows = slice(first, first + self._n_envs)
        self._observation = DictTensor()
        # The environments whose episodes have not ended, in ascending order.
        self._running = torch.empty(0, dtype=torch.int64)
        self._state: DictTensor | None = None
        self._agent_info: DictTensor | None = None

    # Jobs

    def count_envs(self) -> int:
        """Return how many environments the group has."""
        return self._n_envs

    def episodes(self, first_row: int, num: int, args: EpisodeArgs) -> Played:
        """Play `num` whole episodes, which fill the result from row `first_row` on."""
        steps = []
        with self._playing():
            for begin in range(0, num, self._n_envs):
                n = min(self._n_envs, num - begin)
                self._start(n, args.rows(slice(begin, begin + n)))
                steps.append((first_row + begin, self._play(n, None)))
        return self._played(steps)

    def reset(self, args: EpisodeArgs) -> None:
        """Start an episode in each of the group's lanes; `args` has rows for all groups' lanes."""
        with self._streams.in_place(), torch.no_grad():
            self._start(self._n_envs, args.rows(self._rows))

    def chunk(self, agent_info: DictTensor | None) -> Played:
        """Step the running lanes `n_timesteps` times; `agent_info` has rows for all groups."""
        with self._playing():
            if agent_info is not None:
                self._agent_info = agent_info[self._rows][self._running]
            steps = self._play(self._n_envs, self._plan.n_timesteps)
        return self._played([(self._rows.start, steps)])

    def update(self, content: Any) -> None:
        """Pass what is not a mapping of tensors to the agent's `update`."""
        self._load()  # published before, so it must not replace `content` later
        with self._streams.in_place():
            self._agent.update(content)

    def close(self) -> None:
        """Close the agent and the environments."""
        try:
            getattr(self._agent, "close", lambda: None)()
        finally:
            self._env.close()

    def _played(self, parts: Sequence[tuple[int, Steps | None]]) -> Played:
        steps = [
            as_arrays(part._replace(rows=first + part.rows))
            for first, part in parts
            if part is not None
        ]
        return Played(self._n_envs, len(self._running), steps)

    @contextmanager
    def _playing(self) -> Iterator[None]:
        """Load new weights, and let the block play with the group's random generators.

        Raises
        ------
        ClosedError
            An earlier call was stopped in the middle of a step.
        """
        if self._stopped_by is not None:
            name = type(self._stopped_by).__name__
            raise ClosedError(f"a {name} stopped the episodes in the middle of a step")
        self._load()
        try:
            with self._streams.in_place(), torch.no_grad():
                yield
        except BaseException as error:
            self._stopped_by = error
            raise

    def _load(self) -> None:
        """Pass the newest published weights to the agent, unless it has them already."""
        newer = self._context.load(self._version)
        if newer is not None:
            version, content = newer
            with self._streams.in_place():
                self._agent.update(content)
            # Set last, so that an update that was interrupted by Ctrl-C is repeated.
            self._version = version

    # Steps

    def _start(self, n: int, args: EpisodeArgs) -> None:
        """Start an episode in each of the first `n` environments; `args` has one row for each."""
        self._state = None
        # The environments after the first n get the arguments of environment n - 1.
        everyone = args.rows(torch.arange(self._n_envs).clamp(max=n - 1))
        states = {} if everyone.states is None else {"states": everyone.states}
        self._observation, self._running = self._env.reset(everyone.env_info, **states)
        self._agent_info = everyone.agent_info

    def _play(self, n: int, num_steps: int | None) -> Steps | None:
        """Step until none of the first `n` environments is running, or `num_steps` times.

        Returns
        -------
        Steps or None
            The steps of the environments that were running, with their indices as rows; ``None``
            if none of the first `n` was running. The agent's history begins with these steps.
        """
        record = StepRecord(self._n_envs)
        lengths = np.zeros(self._n_envs, np.int64)
        while (self._running.numpy() < n).any() and record.num_steps != num_steps:
            self._context.beat()
            lengths[self._running.numpy()] += 1
            self._step(record)
        if not record.num_steps:
            return None
        (lanes,) = torch.from_numpy(lengths[:n]).nonzero(as_tuple=True)
        tensors = record.tensors()
        if len(lanes) < self._n_envs:
            tensors = take(tensors, (slice(None), lanes))
        return Steps(lanes, torch.from_numpy(lengths)[lanes], tensors)

    def _step(self, record: StepRecord) -> None:
        """Step the running environments, and add the results to `record`."""
        answer = self._ask(record)
        _, action, new_state = answer
        (outcome, was_running), (observation, still_running) = self._env.step(action)
        record.append(was_running, self._fields(answer, outcome))
        self._state = new_state
        if len(still_running) < len(was_running):
            keep = torch.isin(was_running, still_running)
            self._state = _rows(new_state, keep)
            if self._agent_info is not None:
                self._agent_info = _rows(self._agent_info, keep)
        self._observation, self._running = observation, still_running

    def _ask(self, record: StepRecord) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Return the agent's output for the current observation."""
        history = None
        if self._wants_history and record.num_steps:
            steps = take(record.tensors(), (slice(None), self._running))
            size = [len(self._running), record.num_steps]
            batch_first = tree_map(lambda tensor: tensor.transpose(0, 1), steps)
            known = TensorDict(batch_first, batch_size=size)
            history = Trajectories(known, torch.full(size[:1], record.num_steps))
        answer = self._agent(self._state, self._observation, self._agent_info, history=history)
        return _checked(answer, len(self._running), type(self._agent).__name__)

    def _fields(
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
