"""What the two batchers share: their groups, the agent's weights, and turns."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.engine.crew import Crew
from plangym_like.batchers.engine.nests import Leaf, map_nest
from plangym_like.batchers.engine.pools import Pool
from plangym_like.batchers.engine.seeding import whole_seeds
from plangym_like.batchers.engine.shared_nest import SharedNest
from plangym_like.batchers.episodes.harvest import Harvest
from plangym_like.batchers.episodes.player import (
    WEIGHTS,
    Player,
    Recipe,
    Reply,
    Weights,
    disjoint_seeds,
    slots_name,
)
from plangym_like.batchers.episodes.vec_env import VecEnv
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError

# How long a turn in this process may take while nobody waits for it.
_TURN_SECONDS = 0.01
# Groups whose seeds are further apart than this are not asked how many environments they have.
_FAR = 10_000
_ASK_SECONDS = 20.0
# For a look at what has come, without waiting for more.
_GLANCE_SECONDS = 1e-4


class GroupBatcher:
    """Groups of lanes in worker processes, or in this one, and what they have gathered.

    See `EpisodeBatcher` for the parameters.
    """

    _endless = True

    def __init__(
        self,
        n_timesteps: int,
        n_slots: int,
        n_threads: int,
        seeds: int | Sequence[int] | None,
        create_agent: Callable[..., Any],
        agent_args: Mapping[str, Any] | None,
        create_env: Callable[..., VecEnv],
        env_args: Mapping[str, Any] | None,
        *,
        start_method: str = "forkserver",
        timeout: float = 30.0,
        backend: str = "process",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        for name, number, least in (
            ("n_timesteps", n_timesteps, 1),
            ("n_slots", n_slots, 1),
            ("n_threads", n_threads, 0),
        ):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InputError(f"{name} is a whole number of at least {least}, got {number!r}")
        for name, factory in (("create_agent", create_agent), ("create_env", create_env)):
            if not callable(factory):
                raise InputError(f"{name} must be callable, got {type(factory).__name__}")
        self._seeds = _group_seeds(seeds, n_threads)
        self._n_timesteps, self._n_slots = n_timesteps, n_slots
        recipe = Recipe(
            create_agent,
            dict(agent_args or {}),
            create_env,
            dict(env_args or {}),
            self._seeds,
            n_timesteps,
            self._endless,
        )
        self._crew = Crew(
            lambda workplace: Player(workplace, recipe),
            len(self._seeds),
            num_workers=n_threads,
            backend=Backend(
                backend,
                start_method=start_method,
                address=address,
                resources=resources,
                runtime_env=runtime_env,
            ),
            timeout=timeout,
            name=type(self).__name__,
            preload=("plangym_like.batchers.episodes.player",),
        )
        self._in_process = n_threads == 0
        self._closed = False
        self._failure: BaseException | None = None
        self._n_envs: int | None = None
        self._slots: dict[int, Pool] = {}
        self._weights = Weights(0)
        self._new_weights: Any = None
        self._shared_weights: SharedNest | None = None
        self._unfinished: set[int] = set()
        self._read: dict[int, list[int]] = {}
        self._num_running: dict[int, int] = {}
        self._harvest = Harvest()
        if min(np.diff(sorted(self._seeds)), default=_FAR) < _FAR:
            try:
                self._ask_n_envs()
            except BaseException:
                self.close()
                raise

    def _ask_n_envs(self) -> None:
        """Find out whether seeds overlap; what goes wrong in a worker is told by the next `get`."""
        job = self._crew.submit(0, "count_envs")
        try:
            is_known = self._crew.wait(_ASK_SECONDS, job) is not None
        except Exception as error:
            self._failure = error
            return
        if is_known:
            self._note_n_envs(job.result)

    def _note_n_envs(self, n_envs: int) -> None:
        if self._n_envs is not None:
            if n_envs != self._n_envs:
                self.close()
                raise InputError(
                    f"create_env made {n_envs} environments, and {self._n_envs} before; all groups "
                    "have equally many"
                )
            return
        self._n_envs = n_envs
        moved = disjoint_seeds(self._seeds, n_envs)
        if moved != list(self._seeds):
            warnings.warn(
                f"with {n_envs} environments a group, seeded with seed + i, the seeds "
                f"{list(self._seeds)} would repeat episodes; groups are seeded with {moved} "
                f"instead. Give seeds that are at least {n_envs} apart",
                stacklevel=4,
            )

    def update(self, state_dict: Any) -> None:
        """Give all agents' `update` this, before they play what is executed next.

        Parameters
        ----------
        state_dict : mapping of str to tensor
            It is copied. Something else may be given as well, if the agent knows what to do with
            it.
        """
        self._usable()
        if _is_state_dict(state_dict):
            state_dict = {key: value.detach().clone() for key, value in state_dict.items()}
        self._new_weights = state_dict

    def _current_weights(self) -> Weights:
        """Publish what `update` was given; nobody plays now, so nobody is reading it."""
        content, self._new_weights = self._new_weights, None
        if content is None:
            return self._weights
        sent = content
        if _is_state_dict(content):
            layout = {key: Leaf(tuple(x.shape), x.dtype) for key, x in content.items()}
            if self._shared_weights is None or self._shared_weights.layout != layout:
                if self._shared_weights is not None:
                    self._shared_weights.close()
                self._shared_weights = SharedNest(layout)
                self._crew.share(WEIGHTS, self._shared_weights)
            for key, tensor in content.items():
                self._shared_weights.tensors[key].copy_(tensor)
            self._crew.renew(WEIGHTS)
            sent = None
        self._weights = Weights(self._weights.version + 1, sent)
        return self._weights

    def _begin(self, orders: Mapping[int, tuple[Any, ...]]) -> None:
        """Tell groups what to play, and let them take their first turn.

        `orders` are calls of their players: a method and its arguments, but for the weights.
        """
        self._unfinished = set(orders)
        self._harvest = Harvest()
        if self._failure is not None:  # the next `get` tells
            return
        weights = self._current_weights()
        for group, order in orders.items():
            self._crew.submit(group, *order, weights)
            self._take_turn(group, self._read.pop(group, []))

    def _take_turn(self, group: int, freed: list[int]) -> None:
        seconds = _TURN_SECONDS if self._in_process else None
        self._crew.submit(group, "collect", freed, seconds)

    def _gather(self, blocking: bool, timeout: float | None) -> bool:
        """Read what has been filled until all is done, and return whether it is."""
        self._raise_failure()
        deadline = None if timeout is None else time.monotonic() + timeout
        num_turns = len(self._unfinished)
        while self._unfinished:
            if self._in_process and not blocking:
                if not num_turns:
                    return False
                num_turns -= 1
            left = None if deadline is None else max(deadline - time.monotonic(), _GLANCE_SECONDS)
            job = self._crew.wait(left if blocking else _GLANCE_SECONDS)
            if job is None:
                if not self._crew.num_pending:
                    raise ClosedError("an interrupt has lost a part of it; make another batcher")
                if not blocking:
                    return False
            elif job.method == "collect":
                self._take_in(job.group, job.result)
            elif job.method == "count_envs":
                self._note_n_envs(job.result)
            if self._unfinished and deadline is not None and time.monotonic() >= deadline:
                if blocking:
                    raise WorkerTimeoutError(self._what_is_missing(timeout))
        return True

    def _what_is_missing(self, timeout: float | None) -> str:
        pids = self._crew.pids or [os.getpid()]
        missing = ", ".join(f"{g} (pid {pids[g % len(pids)]})" for g in sorted(self._unfinished))
        return (
            f"not done after {timeout:g} s: groups {missing}. Nothing is lost, get() may be called "
            f"again; a worker counts as hung after {self._crew.timeout:g} s without a step"
        )

    def _take_in(self, group: int, reply: Reply) -> None:
        self._note_n_envs(reply.n_envs)
        freed = [piece.slot for piece in reply.pieces]
        if reply.pieces:
            self._harvest.add(reply.pieces, self._slots[group])
        if reply.finished:
            self._num_running[group] = reply.n_running
            self._read[group] = freed
            self._unfinished.discard(group)
            return
        if reply.layout is not None:
            # With as many slots as lanes, a lane that has filled one always gets another.
            num_slots = max(self._n_slots // len(self._seeds), reply.n_envs)
            slot = map_nest(
                lambda leaf: Leaf((self._n_timesteps, *leaf.shape), leaf.dtype), reply.layout
            )
            self._slots[group] = self._crew.make_pool(slots_name(group), slot, num_slots, group)
        self._take_turn(group, freed)

    def close(self) -> None:
        """End the workers, whatever they are doing, within a few seconds; again is fine."""
        self._closed = True
        self._failure = None
        self._crew.close()
        self._unfinished.clear()
        for shared in (*self._slots.values(), self._shared_weights):
            if shared is not None:
                shared.close()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._usable()

    def _usable(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} has been closed; make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _group_seeds(seeds: int | Sequence[int] | None, n_threads: int) -> tuple[int, ...]:
    """Return a seed for each group."""
    num_groups = max(n_threads, 1)
    if seeds is None:
        return tuple(int(seed) for seed in np.random.SeedSequence().generate_state(num_groups) >> 1)
    if np.ndim(seeds) == 0:
        (first,) = whole_seeds([seeds])
        assert first is not None
        seeds = [first + _FAR * group for group in range(num_groups)]
    found = tuple(seed for seed in whole_seeds(seeds) if seed is not None)  # type: ignore[arg-type]
    if not found or len(found) < len(seeds):  # type: ignore[arg-type]
        raise InputError(
            f"seeds are whole numbers of at least 0, one for each group, got {seeds!r}"
        )
    if n_threads > len(found):
        raise InputError(
            f"{n_threads} processes for {len(found)} groups; give a seed for each process at least"
        )
    return found


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and all(
        isinstance(value, torch.Tensor) for value in content.values()
    )
