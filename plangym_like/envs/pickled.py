"""Any environment written in Python, saved as a pickle of its attributes.

What is the state: all attributes of the environment and its wrappers but spaces, specs and
windows (see `plangym_like.snapshots.chain_pickle`). Whether that is all is tried out when the
environment is made: it is saved, stepped, restored and stepped again, and refused if it does not
do the same. One that holds a set is approximate: a pickle does not keep the order in which a set is
iterated (see `plangym_like.snapshots.set_order`).

A row holds a length, a tag and the pickle. Unpickling runs code, so the tag, keyed for this
session and its workers, is checked first. Two rows of one and the same state may differ in a few
bytes: a pickle knows whether two equal strings are one object.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import (
    SnapshotError,
    StateCapacityError,
    StateFormatError,
    UntrustedStateError,
)
from plangym_like.plan_env import PlanEnv
from plangym_like.snapshots.chain_pickle import ChainPickle
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.differences import object_difference
from plangym_like.snapshots.fresh_memory import fresh_memory
from plangym_like.states import Row, padded, session_key

_LENGTH = struct.Struct("<Q")
_TAG_NBYTES = 16
_START = _LENGTH.size + _TAG_NBYTES
_SLACK = 1024


class PickledSimulator(GymnasiumSimulator):
    """A pure-Python Gymnasium environment.

    Parameters
    ----------
    name : str or callable
        A Gymnasium id, or a callable that returns a `gymnasium.Env`.
    state_capacity : int, optional
        Bytes for the snapshot in each row; by default twice what the environment needed when it
        was tried out, or more.
    allow_pickle : bool
        Unpickle rows from outside this session. Such a row can run any code: say so only of files
        that you trust.
    simulator_kwargs
        As in `GymnasiumSimulator`.

    Raises
    ------
    SnapshotError
        The environment cannot be pickled, or does not repeat itself after being restored; the
        message says what, where, and what to do.
    """

    family = "PICK"
    snapshot = "pickle"
    checksum = True
    variable = True
    tried: ClassVar[bool] = True

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        state_capacity: int | None = None,
        allow_pickle: bool = False,
        **simulator_kwargs: Any,
    ) -> None:
        self._allow_pickle = allow_pickle
        super().__init__(name, state_capacity=state_capacity, **simulator_kwargs)

    def prepare(self) -> None:
        """Reset the environment once, and note how it was before."""
        self._fresh = fresh_memory(self.env, base=True)
        super().prepare()

    # What is the state

    def remember(self, env: gymnasium.Env[Any, Any]) -> ChainPickle:
        """Return what saves wrappers and base, in one."""
        self._pickle = ChainPickle(env)
        return self._pickle

    def base_nbytes(self) -> int:
        """Take a few steps, and return the bytes to reserve."""
        needed = _START + self._longest()
        if self.state_capacity is None:
            # A power of two, so that a pickle that is a little longer elsewhere gives the same.
            return 1 << (2 * needed + _SLACK - 1).bit_length()
        if needed > self.state_capacity:
            raise _too_small(needed, self.state_capacity)
        return self.state_capacity

    def _longest(self) -> int:
        """Return the length of the longest snapshot in a few steps, which are taken back."""
        original = self._pickle.dumps()
        longest = len(original)
        self.base._np_random = random_state.seeded_generator(0)
        space = copy.deepcopy(self.env.action_space)
        space.seed(0)
        # Some environments take only actions that are legal now.
        with contextlib.suppress(Exception):
            for _ in range(self.trial_steps):
                *_, terminated, truncated, _ = self.env.step(space.sample())
                longest = max(longest, len(self._pickle.dumps()))
                if terminated or truncated:
                    break
        self._pickle.restore(self._pickle.loads(original))
        return longest
    def _try_out(self) -> None:
        """Try the environment; whatever that shows, one that holds a set is approximate."""
        try:
            super()._try_out()
        except SnapshotError:
            # Whether a few steps show the order of a set is a matter of luck; the answer is not.
            if not self._pickle.unordered:
                raise
        self._pickle.strict = not self._pickle.unordered
        if self._pickle.unordered:
            self.exactness, self.exactness_note = "approximate", self._pickle.unordered

    def meaning(self) -> Mapping[str, Any]:
        """Return id or callable, class, arguments, wrappers and version."""
        return {
            **super().meaning(),
            "class": qualified_name(type(self.base)),
            "callable": None if isinstance(self.name, str) else describe(self.name),
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the environment's attributes that are numbers or arrays, each ``(N, ...)``."""
        memories = [self._memories(payload)[-1] for payload in payloads]
        holder = self._pickle.holders[-1]
        rows = [dict(holder.items(memory)) for memory in memories]
        found = {}
        for name, value in rows[0].items() if rows else ():
            if isinstance(value, bool | int | float | np.generic | np.ndarray):
                parts = [np.asarray(row.get(name)) for row in rows]
                if len({(part.shape, part.dtype) for part in parts}) == 1:
                    found[name] = np.stack(parts)
        return found

    # How is it read

    def read(self, payload: Row) -> int:
        """Write length, tag and pickle into `payload`; return the bytes used."""
        data = self._pickle.dumps()
        used = _START + len(data)
        if used > len(payload):
            raise _too_small(used, len(payload))
        payload[:_START] = np.frombuffer(_LENGTH.pack(len(data)) + _tag(data), np.uint8)
        payload[_START:used] = np.frombuffer(data, np.uint8)
        return used

    def read_base(self, payload: Row) -> None:
        """Do what `read` does: base and wrappers are one."""
        self.read(payload)

    # How is it written

    def write(self, payload: Row) -> None:
        """Unpickle `payload` and make it the current state.

        Raises
        ------
        UntrustedStateError
            The row was not made in this session.
        StateFormatError
            It is damaged; nothing has changed then.
        """
        self._pickle.restore(self._memories(payload))

    def write_base(self, payload: Row) -> None:
        """Do what `write` does: base and wrappers are one."""
        self.write(payload)

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Compare the memories, not the pickles."""
        memories = [
            {holder.place: memory for holder, memory in zip(holders, found, strict=True)}
            for holders, found in ((self._pickle.holders, self._memories(p)) for p in (one, other))
        ]
        return object_difference(memories[0], memories[1], "")

    def _memories(self, payload: Row) -> list[Any]:
        return self._pickle.loads(self._unsealed(payload))

    def _unsealed(self, payload: Row) -> bytes:
        (length,) = _LENGTH.unpack(payload[: _LENGTH.size].tobytes())
        if length > len(payload) - _START:
            raise StateFormatError("the pickle in a state row is damaged: its length")
        data = payload[_START : _START + length].tobytes()
        tag = payload[_LENGTH.size : _START].tobytes()
        if not self._allow_pickle and not hmac.compare_digest(tag, _tag(data)):
            raise UntrustedStateError(
                "a state row holds a pickle that was not made in this session; unpickling it could "
                "run any code. If you trust its source, make the environment with allow_pickle=True"
            )
        return data


class PickledEnv(PlanEnv):
    """Plan over a Gymnasium environment that is written in Python.

    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> env = PickledEnv(PendulumEnv)
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([[0.5], [-0.5]], state).rewards.round(3)
    array([-0.762, -0.762])
    """

    simulator_class = PickledSimulator


def _tag(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=session_key(), digest_size=_TAG_NBYTES).digest()


def _too_small(needed: int, reserved: int) -> StateCapacityError:
    return StateCapacityError(
        f"a snapshot takes {needed} bytes, but {reserved} are reserved in each row; make the "
        f"environment with state_capacity={padded(2 * needed)}"
    )
