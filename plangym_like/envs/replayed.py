"""Any deterministic environment, in any language, saved as its action log.

The state is a log: how the episode began (seed, generator, options), and all actions since then.
The maximum length of the log is fixed when the environment is made. The base of the chain keeps the
log. A process keeps several copies of the environment. To restore a state, the process takes the
copy whose log is the longest prefix of the saved log, and steps this copy through the remaining
actions (`plangym_like.snapshots.replay_cache`). So continuing a branch costs one step, not the
whole log. In a row, the state of the wrappers follows the log as plain data.

A row also holds a digest of all observations, rewards and flags of the episode. If a replay gives a
different digest, an error is raised. The fingerprint of rows includes the digest of a short
episode. If two processes replay that episode differently, for example because their str hashes
differ, then their fingerprints differ too, and neither accepts the other's rows.
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

from plangym_like import random_state
from plangym_like.counts import as_count
from plangym_like.envs.codec import Codec
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import forget_seed, is_plain
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.family_env import FamilyEnv
from plangym_like.row_errors import errors_suppressed, not_exiting
from plangym_like.snapshots.action_log import ACTIONS, ActionLogFormat
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.current_env_proxy import CurrentEnvProxy
from plangym_like.snapshots.differences import difference
from plangym_like.snapshots.known_wrappers import chain
from plangym_like.snapshots.open_libraries import close_copy
from plangym_like.snapshots.outcomes import Outcome, ends, outcome_of
from plangym_like.snapshots.replay_cache import DIGEST_NBYTES, ReplayCache
from plangym_like.snapshots.set_order import set_of_addresses
from plangym_like.snapshots.trial import TrialRule
from plangym_like.states import Row, padded

_HEAD = 8 + DIGEST_NBYTES
_START_NBYTES = 256  # bytes for the entry of a reset with options
_STEPS = 1000
_TRIAL_STEPS = 24
_SAMPLE = 12


class ReplayCodec(Codec):
    """Saves the action log of the current copy, and the digest of its results.

    Parameters
    ----------
    proxy : CurrentEnvProxy
        The base of the chain.
    logs : ActionLogFormat
    name : str or callable
        The id or callable that the environment was made from.
    steps, step_nbytes : int
        The number of steps that must fit into a row, and the bytes that each of them takes.
    episode : str, optional
        The digest of a short episode. A process with another digest cannot replay these logs.
    """

    saves_generator = False

    def __init__(
        self,
        proxy: CurrentEnvProxy,
        logs: ActionLogFormat,
        name: Any,
        *,
        steps: int,
        step_nbytes: int,
        episode: str | None,
    ) -> None:
        self._proxy, self._logs, self._name = proxy, logs, name
        self._steps, self._step_nbytes, self._episode = steps, step_nbytes, episode
        self.nbytes = padded(_HEAD + _START_NBYTES + steps * step_nbytes)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the class, callable and package version, and the digest of an episode."""
        kind = type(self._proxy.unwrapped)
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
        counts = [
            sum(tag in ACTIONS for tag, *_ in self._logs.entries(_unpack(payload)[0]))
            for payload in payloads[:, : self.nbytes]
        ]
        return {"n_actions": np.array(counts, np.int64)}

    def read(self, payload: Row) -> None:
        """Write length, digest and action log into `payload`.

        Raises
        ------
        StateCapacityError
            The episode has more steps than fit into a row.
        SnapshotError
            The environment inside the wrappers has not been reset.
        """
        log, trace_digest = self._proxy.log, self._proxy.trace_digest
        if not trace_digest:
            raise SnapshotError(
                "the wrappers were reset, but not the environment inside them; a wrapper must "
                "reset its environment, and must not replace it with another one"
            )
        end = _HEAD + len(log)
        if end > len(payload):
            steps = len(log) // self._step_nbytes
            raise StateCapacityError(
                f"a state row has room for {self._steps} steps since the reset, but {steps} "
                f"were taken; make the environment with replay_capacity={2 * steps}"
            )
        payload[:8].view(np.uint64)[0] = len(log)
        payload[8:end] = np.frombuffer(trace_digest + log, np.uint8)
        payload[end:] = 0

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
        self._proxy.clear()
        self._proxy.forget()
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
    snapshot = "replay"
    trial: ClassVar[TrialRule] = TrialRule(
        always=True,
        steps=24,
        seeds_matter=True,
        remedy=(
            "So its states cannot be saved as action logs either: draw all randomness from "
            "self.np_random (or from what reset(seed=...) seeds), keep no state outside the "
            "object, and do not read the clock"
        ),
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
        if replay_capacity is not None:
            replay_capacity = as_count("replay_capacity", replay_capacity)
        if live_prefixes is not None:
            live_prefixes = as_count("live_prefixes", live_prefixes)
        self._capacity = replay_capacity or 0
        self._most = live_prefixes
        super().__init__(name, **simulator_kwargs)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the wrapper chain, with a `CurrentEnvProxy` in place of the base environment."""
        env = super().make_env()
        base = env.unwrapped
        self._logs = ActionLogFormat(base.action_space)
        self._proxy = CurrentEnvProxy(base)
        self._proxy.cache = ReplayCache(self._copy, self._logs, self._most or self.copies, base)
        wrappers = list(chain(env))
        limits = [link._max_episode_steps for link in wrappers if isinstance(link, TimeLimit)]
        self._capacity = self._capacity or max([_STEPS, *limits])
        if not wrappers:
            return self._proxy
        wrappers[-1].env = self._proxy
        return env

    def _copy(self) -> gymnasium.Env[Any, Any]:
        return super().make_env().unwrapped

    def _can_be_copied(self) -> bool:
        try:
            other = self._copy()
        except Exception as error:
            not_exiting(error)
            # Some simulators allow only one instance in a process.
            return False
        if other is self._proxy.env:
            # The callable returns the same object each time.
            return False
        close_copy(other)
        return True

    def make_codec(self) -> ReplayCodec:
        """Return the codec, after finding out how to repeat episodes and how large actions are."""
        if self.trial.always:
            single = self._proxy.cache.single = not self._can_be_copied()
            self._proxy.seeds_only = _needs_seeds(None if single else self._copy, self._proxy.env)
        self._refuse_holders()
        self._proxy.cache.wrappers_draw = not is_plain(self.env)
        # Not the episode that the trial plays, so that the trial uses new copies.
        self.env.reset(seed=1)
        if self.trial.always:
            _refuse_addresses(self._proxy.env)
        space = copy.deepcopy(self.env.action_space)
        space.seed(1)
        with errors_suppressed():
            for _ in range(_SAMPLE):
                self.env.step(space.sample())
        episode = self._proxy.trace_digest.hex() if self.trial.always else None
        # A wrapper may have reset the environment in between, so read the log only now.
        log = self._proxy.log
        (_, _, begun), *entries = self._logs.entries(log)
        steps = max(1, sum(tag in ACTIONS for tag, *_ in entries))
        measured = -(-(len(log) - begun) // steps)
        # Not `reset_once`, which raises if a reset replaces the environment; here, this is allowed.
        self.env.reset(seed=0)
        forget_seed(self.env)
        self._proxy.release_copy()
        return ReplayCodec(
            self._proxy,
            self._logs,
            self.name,
            steps=self._capacity,
            step_nbytes=max(self._logs.action_nbytes, measured, 1),
            episode=episode,
        )

    def _end_trial(self, original: Row, fresh: Callable[[], None] | None) -> None:
        super()._end_trial(original, fresh)
        self._proxy.release_copy()
        self._proxy.forget()
        self._proxy.cache.replayed = 0

    def second_copy(self) -> Self | None:
        return None if self._proxy.cache.single else super().second_copy()

    def _refuse_holders(self) -> None:
        """Raise `SnapshotError` if a wrapper refers to the base, which a restore may replace."""
        base = self._proxy.env
        for wrapper in chain(self.env):
            for name, value in vars(wrapper).items():
                held = getattr(value, "__self__", value)
                if held is base and wrapper is not self._proxy:
                    raise SnapshotError(
                        f"{type(wrapper).__name__}.{name} cannot be saved: it holds the "
                        "environment itself, but replay keeps several copies of it; use "
                        "self.unwrapped in each step instead"
                    )

    # Costs

    def forget(self) -> None:
        """Close all copies in the replay cache, unless only one copy can exist."""
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
    used = int(payload[:8].view(np.uint64)[0])
    if used > len(payload) - _HEAD:
        raise StateFormatError("the action log in a state row is damaged: its length is wrong")
    data = payload[8 : _HEAD + used].tobytes()
    return data[DIGEST_NBYTES:], data[:DIGEST_NBYTES]


def _needs_seeds(
    make: Callable[[], gymnasium.Env[Any, Any]] | None, first: gymnasium.Env[Any, Any]
) -> bool:
    """Return whether an episode can be repeated only from a seed.

    This is the case if the environment has random generators other than ``np_random``. To find out,
    the same actions are played twice from the same ``np_random``: in two copies that `make`
    returns, or both times in `first` if `make` is ``None``.
    """
    space = copy.deepcopy(first.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(_TRIAL_STEPS)]
    one, other = (_play(first if make is None else make(), first, actions) for _ in range(2))
    return difference(one, other) is not None


def _play(env: Any, first: gymnasium.Env[Any, Any], actions: list[Any]) -> list[Outcome]:
    try:
        env._np_random = random_state.seeded_generator(7)
        outcomes: list[Outcome] = [(copy.deepcopy(env.reset()[0]),)]
        for action in actions:
            # Infos are left out; if they differ, states are only approximate.
            outcomes.append(outcome_of(env.step, action, error_text=False)[:4])
            if ends(outcomes[-1]):
                break
    finally:
        if env is not first:
            close_copy(env)
    return outcomes


def _refuse_addresses(base: Any) -> None:
    """Raise `SnapshotError` if `base` holds a set whose order may differ between copies."""
    if (place := set_of_addresses(base, type(base).__name__)) is not None:
        raise SnapshotError(
            f"{place} is a set of objects that hash by their address, so two copies of the "
            "environment may iterate over it in different orders, and a replay may differ; keep "
            "the objects as the keys of a dict, which keeps their order"
        )
