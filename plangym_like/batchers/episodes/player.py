"""What a worker hosts: one group of lanes, and how it plays what it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from plangym_like.batchers.engine.nests import leaves, map_nest, take
from plangym_like.batchers.engine.residents import Workplace
from plangym_like.batchers.engine.seeding import RandomStreams, seed_groups
from plangym_like.batchers.episodes.dict_tensor import DictTensor
from plangym_like.batchers.episodes.group import Group
from plangym_like.batchers.episodes.slots import Slots
from plangym_like.batchers.episodes.vec_env import VecEnv
from plangym_like.errors import ClosedError, InputError

# The name of the agent's weights in shared memory.
WEIGHTS = "weights"


@dataclass(frozen=True)
class Recipe:
    """How groups are made and how long their slots are: what the user gave."""

    create_agent: Callable[..., Any]
    agent_args: Mapping[str, Any]
    create_env: Callable[..., VecEnv]
    env_args: Mapping[str, Any]
    seeds: tuple[int, ...]
    n_timesteps: int
    endless: bool


class Infos(NamedTuple):
    """What the agent and the environments are told: DictTensors of equally many rows, or None."""

    agent: DictTensor | None = None
    env: DictTensor | None = None

    def rows(self, first: int, stop: int) -> Infos:
        """Return some of the rows."""
        return Infos(*(info if info is None else info[first:stop] for info in self))


class Share(NamedTuple):
    """Episodes for one group: the number of the first, how many, and their infos."""

    first: int
    num: int
    infos: Infos


class Weights(NamedTuple):
    """What the agent is updated with: how often that has changed, and where it is.

    `sent` is the thing itself; where it is ``None``, it lies in shared memory.
    """

    version: int
    sent: Any = None


class Piece(NamedTuple):
    """A filled slot: steps `start` to ``start + length`` of one row of the result."""

    row: int
    slot: int
    start: int
    length: int


class Reply(NamedTuple):
    """How far a group has come.

    Where `layout` is given, it needs slots of this layout before it can go on.
    """

    pieces: list[Piece]
    finished: bool
    n_envs: int
    n_running: int
    layout: Any


class Player:
    """Plays one group in turns, each of them one call of `collect`.

    A turn ends when all is done, when there are too few free slots to go on, or when its time is
    over. The owner reads the filled slots and hands them back with the next turn.

    Parameters
    ----------
    workplace : Workplace
    recipe : Recipe
    """

    def __init__(self, workplace: Workplace, recipe: Recipe) -> None:
        self._place = workplace
        self._recipe = recipe
        self._slots: Slots | None = None
        self._wanted: Any = None
        self._free: list[int] = []
        self._pieces: list[Piece] = []
        self._work: Iterator[bool] = iter(())
        self._version = 0
        env, seed = self._make_env()
        (noise, _), *_ = seed_groups(seed, [0])
        self._streams = RandomStreams(noise)
        # All groups begin with the same agent, and go on with noise of their own.
        (common, _), *_ = seed_groups(recipe.seeds[0], [0])
        with RandomStreams(common).in_place():
            self._group = Group(env, recipe.create_agent(**recipe.agent_args))

    @property
    def _num_lanes(self) -> int:
        """How many environments all groups have together."""
        return self._group.n_envs * len(self._recipe.seeds)

    def _make_env(self) -> tuple[VecEnv, int]:
        number, given = self._place.group, self._recipe.seeds
        env = self._env_of(given[number])
        seed = disjoint_seeds(given, env.n_envs())[number]
        if seed != given[number]:
            env.close()
            env = self._env_of(seed)
        if env.endless and not self._recipe.endless:
            raise InputError(
                f"the episodes of a {type(env).__name__} never end; it belongs into a Batcher"
            )
        return env, seed

    def _env_of(self, seed: int) -> VecEnv:
        (words, _), *_ = seed_groups(seed, [0])
        with RandomStreams(words).in_place():
            env = self._recipe.create_env(**{**self._recipe.env_args, "seed": seed})
        if not isinstance(env, VecEnv):
            raise InputError(f"create_env must return a VecEnv, got a {type(env).__name__}")
        return env

    def count_envs(self) -> int:
        """Return how many environments the group has."""
        return self._group.n_envs

    def episodes(self, share: Share, weights: Weights) -> None:
        """Get ready to play whole episodes."""
        self._take_over(weights)
        self._work = self._play_episodes(share)

    def reset(self, infos: Infos) -> None:
        """Start an episode in each lane; `infos` have a row for each lane of all the groups."""
        n_envs, number = self._group.n_envs, self._place.group
        self._check_rows(infos.agent, "agent_info")
        self._check_rows(infos.env, "env_info")
        with self._streams.in_place(), torch.no_grad():
            self._group.start(n_envs, *infos.rows(number * n_envs, (number + 1) * n_envs))

    def _check_rows(self, info: DictTensor | None, name: str) -> None:
        if info is not None and info.n_elems() != self._num_lanes:
            raise InputError(f"{name} has {info.n_elems()} rows for {self._num_lanes} environments")

    def chunk(self, num_lanes: int | None, agent_info: DictTensor | None, weights: Weights) -> None:
        """Get ready to go on with the lanes that run, for as many steps as a slot has."""
        if num_lanes is not None and num_lanes != self._num_lanes:
            raise InputError(
                f"a Batcher plays all of its {self._num_lanes} environments, not {num_lanes}; an "
                "EpisodeBatcher plays any number of episodes"
            )
        self._take_over(weights)
        self._group.forget_history()
        if agent_info is not None:
            self._check_rows(agent_info, "agent_info")
            n_envs = self._group.n_envs
            first = self._place.group * n_envs
            rows = agent_info[first : first + n_envs]
            self._group.inform(rows[torch.as_tensor(self._group.running)])
        self._work = self._play_chunk()

    def _take_over(self, weights: Weights) -> None:
        if weights.version == self._version:
            return
        content = weights.sent
        if content is None:
            content = map_nest(torch.clone, self._place.memory[WEIGHTS])
        with self._streams.in_place():
            self._group.agent.update(content)
        # Last: an update that a Ctrl-C has stopped halfway is made again.
        self._version = weights.version

    def collect(self, freed: Sequence[int], seconds: float | None = None) -> Reply:
        """Take a turn, for `seconds` at most.

        Parameters
        ----------
        freed : sequence of int
            Slots that have been read.
        """
        self._free.extend(freed)
        until = None if seconds is None else time.monotonic() + seconds
        finished = True
        try:
            with self._streams.in_place(), torch.no_grad():
                for waits in self._work:
                    self._place.beat()
                    if waits or (until is not None and time.monotonic() > until):
                        finished = False
                        break
        except BaseException as error:
            self._work = _stopped_by(error)
            raise
        pieces, self._pieces = self._pieces, []
        n_running = len(self._group.running)
        return Reply(pieces, finished, self._group.n_envs, n_running, self._wanted)

    def _play_episodes(self, share: Share) -> Iterator[bool]:
        group = self._group
        for begin in range(0, share.num, group.n_envs):
            n = min(group.n_envs, share.num - begin)
            group.start(n, *share.infos.rows(begin, begin + n))
            start = 0
            while (group.running < n).any():
                yield from self._fill_slots(share.first + begin, start, n)
                start += self._recipe.n_timesteps

    def _play_chunk(self) -> Iterator[bool]:
        n_envs = self._group.n_envs
        if len(self._group.running):
            yield from self._fill_slots(self._place.group * n_envs, 0, n_envs)

    def _fill_slots(self, first_row: int, start: int, n_wanted: int) -> Iterator[bool]:
        """Let each running lane fill a slot, and report those of the first `n_wanted` lanes.

        Yields, after every step, whether it has to wait for free slots.
        """
        lanes = self._group.running.copy()
        while not self._are_free(len(lanes)):
            yield True
        assert self._slots is not None
        places = np.zeros(self._group.n_envs, np.int64)
        places[lanes] = [self._free.pop() for _ in lanes]
        lengths = np.zeros(self._group.n_envs, np.int64)
        for t in range(self._recipe.n_timesteps):
            running = self._group.running
            if not (running < n_wanted).any():
                break
            lengths[running] += 1
            self._group.play(self._slots, places, t)
            yield False
        for lane in lanes.tolist():
            slot, length = int(places[lane]), int(lengths[lane])
            if lane < n_wanted:
                self._pieces.append(Piece(first_row + lane, slot, start, length))
                self._hand_in(slot, length)
            else:
                self._free.append(slot)

    def _hand_in(self, slot: int, length: int) -> None:
        name = slots_name(self._place.group)
        self._place.hand_in(name, slot, lambda steps: take(steps, slice(0, length)))

    def _are_free(self, count: int) -> bool:
        """Return whether there are `count` free slots."""
        if self._slots is None:
            memory = self._place.memory.get(slots_name(self._place.group))
            if memory is None:
                if self._wanted is None:
                    self._wanted = self._group.layout()
                return False
            self._slots, self._wanted = Slots(memory), None
            self._free = list(range(len(leaves(memory)[0])))
        return len(self._free) >= count

    def close(self) -> None:
        """Close the agent and the environments."""
        self._group.close()


def _stopped_by(error: BaseException) -> Iterator[bool]:
    """Return what stands for work that cannot go on, because a step was left halfway."""
    message = f"a {type(error).__name__} stopped the episodes in the middle of a step"

    def refuse() -> bool:
        raise ClosedError(message)

    return iter(refuse, None)


def slots_name(group: int) -> str:
    """Return the name of a group's slots in shared memory."""
    return f"slots-{group}"


def disjoint_seeds(seeds: Sequence[int], n_envs: int) -> list[int]:
    """Return `seeds`, moved where they have to be so that no two environments have the same seed.

    Environment i of group k has the seed ``seeds[k] + i``. A group that would repeat a seed of one
    before it moves behind all the others.

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
