"""`Agent`: chooses actions; `EpisodeLoop`: steps one `VecEnv` with it, in an `EpisodeWorker`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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


# How many steps a record has room for at first, if their number is not known.
_FEWEST_STEPS = 32


class StepRecord:
    """The steps of `n_envs` environments; all have the fields, shapes and dtypes of the first.

    Parameters
    ----------
    first : mapping of str to tensor or mapping
        The fields of the first step: tensors ``(n, ...)``, on any device.
    n_envs : int
    num_steps : int
        The expected number of steps; 0 if it is not known.

    Attributes
    ----------
    tensors : dict of str to Tensor or dict
        CPU tensors ``(T, n_envs, ...)`` with room for T steps; rows never written hold any values.
    num_steps : int
        The number of steps so far.
    """

    def __init__(self, first: Any, n_envs: int, num_steps: int) -> None:
        self.num_steps = 0
        self._n_envs = n_envs
        self._use(_columns(first, num_steps or _FEWEST_STEPS, n_envs))

    def _use(self, tensors: Any) -> None:
        self.tensors = tensors
        self._columns = dict(named_leaves(tensors))

    def append(self, lanes: torch.Tensor, step: Any) -> None:
        """Write the fields ``(n, ...)`` of the environments `lanes`, an int64 tensor ``(n,)``.

        Raises
        ------
        InputError
            A field is missing or new, or its shape or dtype differs from the first step's.
        """
        t, everyone = self.num_steps, len(lanes) == self._n_envs
        if any(t == len(column) for column in self._columns.values()):
            self._use(tree_map(lambda old: torch.cat([old, torch.empty_like(old)]), self.tensors))
        num_written = 0
        for path, value in named_leaves(step):
            column = self._columns.get(path)
            if (
                column is None
                or value.dtype is not column.dtype
                or value.shape[1:] != column.shape[2:]
                or value.shape[0] != len(lanes)
            ):
                raise _changed(path, value, column, len(lanes))
            if everyone:
                column[t] = value.detach()
            else:
                column[t].index_copy_(0, lanes, value.detach().cpu())
            num_written += 1
        if num_written != len(self._columns):
            written = {path for path, _ in named_leaves(step)}
            missing = sorted("/".join(path) for path in self._columns.keys() - written)
            raise InputError(f"fields of the first step are missing: {missing}")
        self.num_steps += 1


def _columns(fields: Any, num_steps: int, n_envs: int) -> Any:
    if isinstance(fields, torch.Tensor):
        return torch.empty((num_steps, n_envs, *fields.shape[1:]), dtype=fields.dtype)
    return {key: _columns(value, num_steps, n_envs) for key, value in fields.items()}


def _changed(
    path: tuple[str, ...], value: torch.Tensor, column: torch.Tensor | None, num_lanes: int
) -> InputError:
    name = "/".join(path)
    if column is None:
        return InputError(
            f"{name!r} was not in the first step; all steps must have the same fields"
        )
    return InputError(
        f"{name!r} is {value.dtype} of shape {tuple(value.shape)}; as in the first step it must be "
        f"{column.dtype} of shape {(num_lanes, *column.shape[2:])}: a row per running environment"
    )


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
        self._observation = DictTensor()
        self._running = torch.empty(0, dtype=torch.int64)
        self._state: DictTensor | None = None
        self._agent_info: DictTensor | None = None

    @property
    def running(self) -> NDArray[np.int64]:
        """The environments whose episodes have not ended, in ascending order."""
        return self._running.numpy()

    def start(self, n: int, args: EpisodeArgs) -> None:
        """Start an episode in each of the first `n` environments; `args` has one row for each."""
        self._state = None
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

    def inform(self, agent_info: DictTensor) -> None:
        """Use `agent_info` from the next step on; it has one row for each running environment."""
        self._agent_info = agent_info

    def play(self, n: int, num_steps: int | None, beat: Callable[[], object]) -> Steps | None:
        """Step until none of the first `n` environments is running, or `num_steps` times.

        Parameters
        ----------
        n : int
        num_steps : int, optional
        beat : callable
            Called at every step.

        Returns
        -------
        Steps or None
            The steps of the environments that were running, with their indices as rows; ``None``
            if none of the first `n` was running. The agent's history begins with these steps.
        """
        record: StepRecord | None = None
        lengths = np.zeros(self.n_envs, np.int64)
        t = 0
        while (self.running < n).any() and t != num_steps:
            beat()
            lengths[self.running] += 1
            record = self._step(record, num_steps or 0)
            t += 1
        if record is None:
            return None
        (lanes,) = torch.from_numpy(lengths[:n]).nonzero(as_tuple=True)
        every = len(lanes) == self.n_envs
        tensors = take(record.tensors, slice(0, t) if every else (slice(0, t), lanes))
        return Steps(lanes, torch.from_numpy(lengths)[lanes], tensors)

    def _step(self, record: StepRecord | None, num_steps: int) -> StepRecord:
        """Step the running environments, and write the results to `record`.

        Return the record, which is made by the first step; `num_steps` steps are expected.
        """
        answer = self._ask(record)
        _, action, new_state = answer
        (outcome, was_running), (observation, still_running) = self.env.step(action)
        fields = self._fields(answer, outcome)
        if record is None:
            record = StepRecord(fields, self.n_envs, num_steps)
        record.append(was_running, fields)
        self._state = new_state
        if len(still_running) < len(was_running):
            keep = torch.isin(was_running, still_running)
            self._state = _rows(new_state, keep)
            if self._agent_info is not None:
                self._agent_info = _rows(self._agent_info, keep)
        self._observation, self._running = observation, still_running
        return record

    def _ask(self, history: StepRecord | None) -> tuple[DictTensor, DictTensor, DictTensor]:
        """Return the agent's output for the current observation."""
        known = self._history_of_running(history) if self._wants_history else None
        answer = self.agent(self._state, self._observation, self._agent_info, history=known)
        return _checked(answer, len(self._running), type(self.agent).__name__)

    def _history_of_running(self, history: StepRecord | None) -> Trajectories | None:
        if history is None:
            return None
        n, steps = history.num_steps, history.tensors
        batch_first = tree_map(lambda tensor: tensor[:n, self._running].transpose(0, 1), steps)
        size = [len(self._running), n]
        return Trajectories(TensorDict(batch_first, batch_size=size), torch.full(size[:1], n))

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

    def close(self) -> None:
        """Close the agent and the environments."""
        try:
            getattr(self.agent, "close", lambda: None)()
        finally:
            self.env.close()


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
    """Plays the episodes of one group.

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

    def episodes(self, first_row: int, num: int, args: EpisodeArgs) -> Played:
        """Play `num` whole episodes, which fill the result from row `first_row` on."""
        loop, steps = self._loop, []
        with self._playing():
            for begin in range(0, num, loop.n_envs):
                n = min(loop.n_envs, num - begin)
                loop.start(n, args.rows(slice(begin, begin + n)))
                steps.append((first_row + begin, loop.play(n, None, self._context.beat)))
        return self._played(steps)

    def reset(self, args: EpisodeArgs) -> None:
        """Start an episode in each of the group's lanes; `args` has rows for all groups' lanes."""
        with self._streams.in_place(), torch.no_grad():
            self._loop.start(self._loop.n_envs, args.rows(self._rows))

    def chunk(self, agent_info: DictTensor | None) -> Played:
        """Step the running lanes `n_timesteps` times; `agent_info` has rows for all groups."""
        loop = self._loop
        with self._playing():
            if agent_info is not None:
                loop.inform(agent_info[self._rows][torch.as_tensor(loop.running)])
            steps = loop.play(loop.n_envs, self._plan.n_timesteps, self._context.beat)
        return self._played([(self._rows.start, steps)])

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
                self._loop.agent.update(content)
            # Set last, so that an update that was interrupted by Ctrl-C is repeated.
            self._version = version

    def update(self, content: Any) -> None:
        """Pass what is not a mapping of tensors to the agent's `update`."""
        self._load()  # published before, so it must not replace `content` later
        with self._streams.in_place():
            self._loop.agent.update(content)

    def _played(self, parts: Sequence[tuple[int, Steps | None]]) -> Played:
        steps = [
            as_arrays(part._replace(rows=first + part.rows))
            for first, part in parts
            if part is not None
        ]
        return Played(self._loop.n_envs, len(self._loop.running), steps)

    def close(self) -> None:
        """Close the agent and the environments."""
        self._loop.close()
