"""Any deterministic environment, whatever it is written in, saved as what has happened to it.

What is the state: how the episode began (seed, generator, options) and every action since, up to
a capacity that is fixed when the environment is made. How is it read: the base of the chain keeps
its history. How is it written: a copy of the environment that already stands at a beginning of
the history plays the rest (`plangym_like.snapshots.live_prefixes`), so continuing a branch costs
one step and not the whole history. The wrappers' memory follows as plain data.

A row also holds a digest of everything that could be seen on the way. An environment that shows
something else when its history is played again is found out, never trusted. The fingerprint of all
rows holds such a digest of a short episode, so that two processes that would play one history in
two ways (because text hashes differently in each) do not share rows.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import InputError, SnapshotError, StateCapacityError, StateFormatError
from plangym_like.plan_env import PlanEnv
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.history import ACTIONS, Histories
from plangym_like.snapshots.known_wrappers import TRANSPARENT, chain
from plangym_like.snapshots.live_prefixes import WITNESS_NBYTES, LivePrefixes
from plangym_like.snapshots.replay_trial import needs_seeds
from plangym_like.snapshots.set_order import set_of_addresses
from plangym_like.snapshots.stage import Stage
from plangym_like.states import Row

_HEAD = 8 + WITNESS_NBYTES
_ROOM_FOR_START = 256
_STEPS = 1000
_SAMPLE = 12


class ReplayedSimulator(GymnasiumSimulator):
    """A deterministic Gymnasium environment.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    replay_capacity : int, optional
        Steps that a state may lie behind its reset; by default what the id's time limit allows,
        and 1,000 at least. Rows are so much wider.
    live_prefixes : int, optional
        Copies of the environment that each process keeps alive; 64 unless the family says
        otherwise. A search is fast while it continues no more branches at a time in each process
        than there are copies.
    simulator_kwargs
        As in `GymnasiumSimulator`.

    Raises
    ------
    SnapshotError
        The environment is not deterministic; the message says what differed and what to do.
    """

    family = "RPLY"
    checksum = True
    snapshot = "replay"
    tried: ClassVar[bool] = True
    trial_steps: ClassVar[int] = 24
    seeds_matter: ClassVar[bool] = True
    remedy: ClassVar[str] = (
        "So its states cannot be saved as histories either: draw all randomness from "
        "self.np_random (or from what reset(seed=...) seeds), keep no state outside the object, "
        "and look at no clock"
    )
    copies: ClassVar[int] = 64

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        replay_capacity: int | None = None,
        live_prefixes: int | None = None,
        **simulator_kwargs: Any,
    ) -> None:
        options = {"replay_capacity": replay_capacity, "live_prefixes": live_prefixes}
        for option, value in options.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{option} is a whole number of at least 1, got {value!r}")
        self._capacity = replay_capacity
        self._most = live_prefixes
        super().__init__(name, **simulator_kwargs)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the chain with a `Stage` for its base."""
        env = super().make_env()
        base = env.unwrapped
        self._histories = Histories(base.action_space)
        self._stage = Stage(base)
        self._stage.prefixes = LivePrefixes(
            self._copy, self._histories, self._most or self.copies, base
        )
        wrappers = list(chain(env))
        limits = [link._max_episode_steps for link in wrappers if isinstance(link, TimeLimit)]
        self._capacity = self._capacity or max([_STEPS, *limits])
        if not wrappers:
            return self._stage
        wrappers[-1].env = self._stage
        return env

    def _copy(self) -> gymnasium.Env[Any, Any]:
        return super().make_env().unwrapped

    def _can_be_copied(self) -> bool:
        try:
            other = self._copy()
        except Exception:
            # Some simulators allow one of their kind in a process.
            return False
        if other is self._stage.env:
            # A callable that returns one and the same object each time.
            return False
        with contextlib.suppress(Exception):
            other.close()
        return True

    def prepare(self) -> None:
        """Find out how episodes can be begun again, and what an action takes."""
        if self.tried:
            alone = self._stage.prefixes.alone = not self._can_be_copied()
            self._stage.seeds_only = needs_seeds(None if alone else self._copy, self._stage.env)
        self._refuse_holders()
        self._stage.prefixes.shared = any(
            type(wrapper) not in (*TRANSPARENT, TimeLimit) for wrapper in chain(self.env)
        )
        # Another episode than that of the trial, which is to be played by copies that are new.
        self.env.reset(seed=1)
        if self.tried:
            _refuse_addresses(self._stage.env)
        space = copy.deepcopy(self.env.action_space)
        space.seed(1)
        with contextlib.suppress(Exception):
            for _ in range(_SAMPLE):
                self.env.step(space.sample())
        self._episode = self._stage.witness.hex()
        # A wrapper may have reset it in between, so the history is looked at only now.
        history = self._stage.history
        (_, _, begun), *entries = self._histories.entries(history)
        steps = max(1, sum(tag in ACTIONS for tag, *_ in entries))
        measured = -(-(len(history) - begun) // steps)
        self._step_nbytes = max(self._histories.action_nbytes, measured, 1)
        super().prepare()
        self._stage.leave_copy()

    def _end_trial(self, original: Row, fresh: Callable[[], None] | None) -> None:
        super()._end_trial(original, fresh)
        self._stage.leave_copy()
        self._stage.forget()
        self._stage.prefixes.replayed = 0

    def _second_copy(self) -> Self | None:
        return None if self._stage.prefixes.alone else super()._second_copy()

    def _refuse_holders(self) -> None:
        """Refuse wrappers that hold a copy of the base, since another may be current."""
        base = self._stage.env
        for wrapper in chain(self.env):
            for name, value in vars(wrapper).items():
                held = getattr(value, "__self__", value)
                if held is base and wrapper is not self._stage:
                    raise SnapshotError(
                        f"{type(wrapper).__name__}.{name} cannot be saved: it holds the "
                        "environment itself, of which there are several copies where states are "
                        "saved as histories; use self.unwrapped when it is needed"
                    )

    # What is the state

    def base_nbytes(self) -> int:
        """Return the bytes of the longest history that is to fit."""
        assert self._capacity is not None
        return _HEAD + _ROOM_FOR_START + self._capacity * self._step_nbytes

    def meaning(self) -> Mapping[str, Any]:
        """Return id or callable, class, arguments, wrappers and versions."""
        package = type(self.base).__module__.partition(".")[0]
        version = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
        return {
            **super().meaning(),
            "class": qualified_name(type(self.base)),
            "callable": None if isinstance(self.name, str) else describe(self.name),
            "package": version,
            # A process in which the same episode is another one cannot replay these histories.
            "episode": self._episode if self.tried else None,
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``n_actions`` since the reset ``(N,)``, and the wrappers' parts."""
        counts = [
            sum(tag in ACTIONS for tag, *_ in self._histories.entries(_unpack(payload)[0]))
            for payload in payloads
        ]
        named = self.memory.fields(payloads[:, self._base_nbytes :])
        return {"n_actions": np.array(counts, np.int64), **named}

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Write length, digest and history into `payload`.

        Raises
        ------
        StateCapacityError
            The episode is longer than there is room for.
        """
        history, witness = self._stage.history, self._stage.witness
        end = _HEAD + len(history)
        if end > len(payload):
            steps = len(history) // self._step_nbytes
            raise StateCapacityError(
                f"{steps} steps since the reset do not fit the room for {self._capacity} in each "
                f"state row; make the environment with replay_capacity={2 * steps}"
            )
        payload[:8].view(np.uint64)[0] = len(history)
        payload[8:end] = np.frombuffer(witness + history, np.uint8)
        payload[end:] = 0

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Have a copy stand where the history in `payload` leads.

        Raises
        ------
        StateFormatError
            The row is damaged.
        SnapshotError
            Playing the history again showed something else than the first time.
        """
        self._stage.stand_at(*_unpack(payload))

    def reseed(self, seed: int) -> None:
        """Give the base and every wrapper that draws numbers of its own a new generator."""
        self._stage.reseed(seed)
        self.memory.reseed(seed)

    def renew(self) -> None:
        """Have the next episode begin with a fresh generator."""
        self._stage.let_go()
        self._stage.forget()
        self._stage.prefixes.replayed = 0
        super().renew()

    def forget(self) -> None:
        """Close all live copies but the one in use."""
        self._stage.forget()

    @property
    def replayed(self) -> int:
        """Steps that were played again in this process so far."""
        return self._stage.prefixes.replayed


class ReplayedEnv(PlanEnv):
    """Plan over any deterministic Gymnasium environment.

    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> env = ReplayedEnv(PendulumEnv, replay_capacity=200)
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([[0.5], [-0.5]], state).rewards.round(3)
    array([-0.762, -0.762])
    """

    simulator_class = ReplayedSimulator


def _unpack(payload: Row) -> tuple[bytes, bytes]:
    used = int(payload[:8].view(np.uint64)[0])
    if used > len(payload) - _HEAD:
        raise StateFormatError("the history in a state row is damaged: its length")
    data = payload[8 : _HEAD + used].tobytes()
    return data[WITNESS_NBYTES:], data[:WITNESS_NBYTES]


def _refuse_addresses(base: Any) -> None:
    """Refuse what may do something else in every copy, whether or not a trial has shown it."""
    if (place := set_of_addresses(base, type(base).__name__)) is not None:
        raise SnapshotError(
            f"{place} is a set of objects that hash by their address, so two copies of the "
            "environment may iterate it in two orders, and playing its history again may give "
            "something else; keep the objects as the keys of a dict, which keeps their order"
        )
