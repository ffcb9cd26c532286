"""Any deterministic environment, in any language, saved as its action log.

The state is a log: how the episode began (seed, generator, options), and all actions since then.
The maximum length of the log is fixed when the environment is made. A process keeps several copies
of the whole chain: the environment and all of its wrappers. To restore a state, the process takes
the copy whose log is the longest prefix of the saved log, and steps this copy through the remaining
actions (`plangym_like.snapshots.replay`). So continuing a branch costs one step, not the whole log.
Box2D's environments can also go back at once (`plangym_like.envs.box2d_images`). As the whole chain
is replayed, a wrapper may change the environment inside it at any time.

Each episode begins in a new copy of the chain. What Gymnasium's chain would keep from the episode
before is at the beginning of the log (`plangym_like.snapshots.replayed_chain`).

A row also holds a digest of all observations, rewards and flags of the episode. If a replay gives a
different digest, an error is raised. The fingerprint of rows includes the digest of a short
episode. If two processes replay that episode differently, for example because their str hashes
differ, then their fingerprints differ too, and neither accepts the other's rows.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv, suggest_state_attributes
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import NothingSaved, check_is_new, spaces_of
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.action_log import ACTIONS, ActionLogFormat
from plangym_like.snapshots.chains import (
    CONSTANT,
    chain,
    close_copy,
    innermost,
    links,
    note_on_sets,
)
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.differences import attributes, differing_attributes
from plangym_like.snapshots.known_wrappers import describe_wrappers
from plangym_like.snapshots.replay import DIGEST_NBYTES, ReplayCache
from plangym_like.snapshots.replayed_chain import CarriedState, ReplayedChain
from plangym_like.snapshots.trial import MEASURED_STEPS, while_quick
from plangym_like.states.rows import Row, padded
from plangym_like.support.arguments import as_count

_LENGTH = struct.Struct("=Q")
_HEAD = _LENGTH.size + DIGEST_NBYTES
_START_NBYTES = 256  # bytes for the entry of a reset with options
_STEPS = 1000


class ReplayCodec(Codec):
    """Saves the action log of the current copy, and the digest of its results.

    Parameters
    ----------
    proxy : ReplayedChain
        The outermost wrapper of the chain.
    logs : ActionLogFormat
    name : str or callable
        The id or callable that the environment was made from.
    steps, step_nbytes : int
        The number of steps that must fit into a row, and the bytes that each of them takes.
    carried_nbytes : int
        The bytes reserved for what the chain takes over from the episode before.
    episode : str, optional
        The digest of a short episode. A process with another digest cannot replay these logs.
    """

    saves_generator = False

    def __init__(
        self,
        proxy: ReplayedChain,
        logs: ActionLogFormat,
        name: Any,
        *,
        steps: int,
        step_nbytes: int,
        carried_nbytes: int,
        episode: str | None,
    ) -> None:
        self._proxy, self._logs, self._name = proxy, logs, name
        self._steps, self._step_nbytes, self._episode = steps, step_nbytes, episode
        self._carried_nbytes = carried_nbytes
        self.nbytes = padded(_HEAD + _START_NBYTES + carried_nbytes + steps * step_nbytes)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the class, callable and package version, and the digest of an episode."""
        kind = type(innermost(self._proxy))
        version = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(kind.__module__.partition(".")[0])
        return {
            "class": qualified_name(kind),
            "callable": None if isinstance(self._name, str) else describe(self._name),
            "package": version,
            "episode": self._episode,
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``n_actions`` ``(N,)``, the number of actions since the reset."""
        counts = [self._count(_unpack(payload)[0]) for payload in payloads]
        return {"n_actions": np.array(counts, np.int64)}

    def _count(self, log: bytes) -> int:
        """Return the number of actions in `log`."""
        return sum(tag in ACTIONS for tag, *_ in self._logs.entries(log))

    def read(self, payload: Row) -> int:
        """Write length, digest and action log into `payload`; return the number of bytes used.

        Raises
        ------
        StateCapacityError
            The episode has more steps than fit into a row.
        SnapshotError
            The environment has not been reset.
        """
        log, trace_digest = self._proxy.log_and_digest
        if not trace_digest:
            raise SnapshotError("the environment has no state yet: it has not been reset")
        end = _HEAD + len(log)
        if end > len(payload):
            raise self._too_large(log, len(payload) - _HEAD)
        payload.data[:end] = _LENGTH.pack(len(log)) + trace_digest + log
        self._proxy.keep()
        return end

    def _too_large(self, log: bytes, room: int) -> StateCapacityError:
        """Return the error for a `log` that does not fit into `room` bytes."""
        steps = self._count(log)
        if steps > self._steps:
            return StateCapacityError(
                f"a state row is sure to have room for {self._steps} steps since the reset, but "
                f"{steps} were taken; make the environment with replay_capacity={2 * steps}"
            )
        (_, start, begun), *_ = self._logs.entries(log)
        carried = len(start.carried or b"")
        if carried > self._carried_nbytes:
            return StateCapacityError(
                "what the wrappers and the environment keep from one episode to the next takes "
                f"{carried} bytes, but {self._carried_nbytes} are reserved; make the environment "
                f"with state_capacity={padded(2 * carried)}"
            )
        needed = self._steps + -(-(len(log) - room) // self._step_nbytes)
        return StateCapacityError(
            f"the log of the {steps} steps since the reset takes {len(log)} bytes, but a state row "
            f"has room for {room}: the reset, with its options, takes {begun} bytes, and seeds, "
            "unusual actions and changed attributes take room too; make the environment with "
            f"replay_capacity={2 * needed}"
        )

    def write(self, payload: Row) -> None:
        """Bring a copy of the environment to the state that the log in `payload` leads to.

        Raises
        ------
        StateFormatError
            The row is damaged.
        SnapshotError
            The replay gave other observations, rewards or flags than the original episode.
        """
        self._proxy.restore(*_unpack(payload))

    def reseed(self, seed: int) -> None:
        self._proxy.reseed(seed)

    def renew(self) -> None:
        """Drop the current state; the next episode begins with a fresh random generator."""
        self._proxy.renew()
        self._proxy.cache.replayed = 0


class ReplayedSimulator(GymnasiumSimulator):
    """A simulator of a deterministic Gymnasium environment.

    Parameters
    ----------
    replay_capacity : int, optional
        The maximum number of steps from the reset to a state; by default the environment's time
        limit, but at least 1,000. Larger values make rows wider.
    live_prefixes : int, optional
        The maximum number of copies of the environment in each process's replay cache; by default
        64 in most families. A search is fast if each process continues at most this many branches
        at a time.
    name, simulator_kwargs
        As in `GymnasiumSimulator`.

    Raises
    ------
    SnapshotError
        The environment is not deterministic; the message says what differed and what to do.
    """

    family = "RPLY"
    checksum = True
    variable = True
    snapshot = "replay"
    always_tried: ClassVar[bool] = True
    copies: ClassVar[int] = 64

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        replay_capacity: int | None = None,
        live_prefixes: int | None = None,
        **simulator_kwargs: Any,
    ) -> None:
        if replay_capacity is not None:
            replay_capacity = as_count("replay_capacity", replay_capacity)
        if live_prefixes is not None:
            live_prefixes = as_count("live_prefixes", live_prefixes)
        self._capacity = replay_capacity or 0
        self._most = live_prefixes
        super().__init__(name, **simulator_kwargs)

    def wrapped(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Return `env` in the user's wrappers; note how long its episodes may be."""
        removed = list(chain(env))
        env = super().wrapped(env)
        if not self._capacity:
            found = [*removed, *chain(env)]
            limits = [link._max_episode_steps for link in found if isinstance(link, TimeLimit)]
            self._capacity = max([_STEPS, *limits])
        return env

    def _set_up(self, env: gymnasium.Env[Any, Any]) -> None:
        self._logs = ActionLogFormat(spaces_of(env)[0])
        self._proxy = ReplayedChain(env, self._logs)
        self._proxy.cache = ReplayCache(
            self._copy,
            self._logs,
            self._most or self.copies,
            self._make_new,
            self.imager_of(env),
        )
        self._proxy.seeds_only = self._trial_result is not None and self._trial_result.seeds_only
        super()._set_up(self._proxy)

    def _copy(self) -> gymnasium.Env[Any, Any]:
        """Return a new copy of the chain."""
        env = self.wrapped(self.make_env())
        check_is_new(env, self._proxy, self.name)
        return env

    def _make_new(self, env: gymnasium.Env[Any, Any]) -> bool:
        """Make a copy that was used like a new one, if possible; return whether it is."""
        return False

    def imager_of(self, env: gymnasium.Env[Any, Any]) -> Callable[..., Any] | None:
        """Return what makes the imagers of copies of `env` (see `ReplayCache`), if it is known."""
        return None

    def restorer(self) -> Callable[[], None] | None:
        """Return ``None``: the first copy is never reset."""
        return None

    def make_memory(self) -> Any:
        """Return an object that saves nothing: the log leads to the state of the wrappers too."""
        return NothingSaved(describe_wrappers(self.env))

    def make_codec(self) -> ReplayCodec:
        """Return the codec, after finding out what wrappers keep and how large actions are."""
        proxy, cache = self._proxy, self._proxy.cache
        cache.carried = self._find_carried()
        self.env.reset(seed=1)
        if self._is_tried:
            _refuse_addresses(self._proxy.env)
        space = copy.deepcopy(self.env.action_space)
        space.seed(1)
        with contextlib.suppress(Exception):
            for _ in while_quick(range(MEASURED_STEPS)):
                self.env.step(space.sample())
        log, trace_digest = proxy.log_and_digest
        episode = trace_digest.hex() if self.always_tried else None
        (_, _, begun), *entries = self._logs.entries(log)
        steps = max(1, sum(tag in ACTIONS for tag, *_ in entries))
        measured = -(-(len(log) - begun) // steps)
        return ReplayCodec(
            self._proxy,
            self._logs,
            self.name,
            steps=self._capacity,
            step_nbytes=max(self._logs.action_nbytes, measured, 1),
            carried_nbytes=self.state_capacity or cache.carried.nbytes,
            episode=episode,
        )

    def _find_carried(self) -> CarriedState:
        """Return what reads and writes the state that a chain takes over from an episode."""
        first = self._proxy.env
        carried = CarriedState(first)
        if carried.is_empty:
            return carried
        used = self._copy()
        try:
            return CarriedState(first, used)
        finally:
            close_copy(used)

    def _run_trial(self) -> str:
        """Run the trial; also return a note if an episode is not given what the last one kept."""
        note, lost = super()._run_trial(), self._proxy.cache.carried.lost
        base = innermost(self._proxy)
        if _is_plain_data(base):
            suggest_state_attributes(self, base, "its actions since the reset")
        if note or not lost:
            return note
        return (
            f"{lost}, which a wrapper keeps from one episode to the next, is another object in "
            "each replayed episode: make it in the constructor of the wrapper"
        )

    @property
    def seeds_only(self) -> bool:  # type: ignore[override]
        """Whether a reset without a seed draws one, since only that can be repeated."""
        return self._proxy.seeds_only

    def draw_seeds(self) -> bool:
        """From now on, draw a seed for each reset without one; return whether that is new.

        The environment has random generators other than ``np_random``, which no log holds.
        """
        is_new = not self._proxy.seeds_only
        self._proxy.seeds_only = True
        return is_new

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return an attribute in which the states of two payloads differ, and both values.

        Rows with different logs may hold the same state, if a wrapper keeps values that the reset
        then replaces.
        """
        found = super().state_difference(one, other)
        if found is None or _unpack(one)[1] != _unpack(other)[1]:
            return found
        states = []
        for payload in (one, other):
            self.write(payload)
            states.append(attributes(self._proxy.env))
        names = differing_attributes(*states)
        return None if not names else (names[0], "not the same value both times")

    # Costs

    def clear_caches(self) -> None:
        """Close all copies in the replay cache."""
        self._proxy.forget()

    @property
    def replayed(self) -> int:
        """The number of steps replayed since this simulator was made or last renewed."""
        return self._proxy.cache.replayed


class ReplayedEnv(FamilyEnv):
    """A `PlanEnv` of any deterministic Gymnasium environment.

    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> env = ReplayedEnv(PendulumEnv, replay_capacity=200)
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([[0.5], [-0.5]], state).rewards.round(3)
    array([-0.762, -0.762])
    """

    simulator_class = ReplayedSimulator


def _unpack(payload: Row) -> tuple[bytes, bytes]:
    memory = payload.data
    (used,) = _LENGTH.unpack_from(memory)
    if used > len(payload) - _HEAD:
        raise StateFormatError("the action log in a state row is damaged: its length is wrong")
    return bytes(memory[_HEAD : _HEAD + used]), bytes(memory[8:_HEAD])


def _refuse_addresses(env: gymnasium.Env[Any, Any]) -> None:
    """Raise `SnapshotError` if `env` holds a set whose order may differ between copies."""
    for link in reversed(links(env)):
        if note := note_on_sets(link, type(link).__name__):
            raise SnapshotError(note)


def _is_plain_data(base: Any) -> bool:
    """Return whether all attributes of `base` that steps can change are plain data."""
    try:
        plain_data.encode({key: vars(base)[key] for key in vars(base) if key not in CONSTANT})
    except SnapshotError:
        return False
    return True
