"""Any environment written in Python, saved as a pickle of its attributes.

What is the state: all attributes of the environment and its wrappers but spaces, specs and windows (see
`plangym_like.envs.chain_pickle`). Whether that is all is tried out when the environment is made: it is
saved, stepped, restored and stepped again, and refused if it does not do the same.

A row holds a length, a tag and the pickle. Unpickling runs code, so the tag, keyed for this session
and its workers, is checked first. Rows of one and the same state may differ in a few bytes: a pickle
knows whether two equal strings are one object.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.envs import plain_data
from plangym_like.envs.chain_pickle import ChainPickle
from plangym_like.envs.configuration import describe, qualified_name
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator, forget_seed
from plangym_like.envs.wrapper_memory import WrapperMemory, describe_wrappers
from plangym_like.errors import (
    SnapshotError,
    StateCapacityError,
    StateFormatError,
    UntrustedStateError,
)
from plangym_like.plan_env import PlanEnv
from plangym_like.states import Row, padded, session_key

_TAG_NBYTES = 16
_LENGTH = struct.Struct("<Q")
_START = _LENGTH.size + _TAG_NBYTES
_PROBE_STEPS = 12
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
    checksum = True
    variable = True

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        *,
        state_capacity: int | None = None,
        allow_pickle: bool = False,
        **simulator_kwargs: Any,
    ) -> None:
        self._capacity = state_capacity
        self._allow_pickle = allow_pickle
        super().__init__(name, **simulator_kwargs)

    # What is the state

    def remember(self, env: gymnasium.Env[Any, Any]) -> WrapperMemory | None:
        """Return nothing: the wrappers are in the pickle of the base."""
        self._pickle = ChainPickle(env)
        return None

    def base_nbytes(self) -> int:
        """Try the environment out, and return the bytes to reserve."""
        needed = _START + self._try_out()
        if self._capacity is None:
            return 1 << (2 * needed + _SLACK - 1).bit_length()
        if needed > self._capacity:
            raise self._too_small(needed)
        return self._capacity

    def meaning(self) -> Mapping[str, Any]:
        """Return id or callable, class, arguments, wrappers and version."""
        return {
            **super().meaning(),
            "class": qualified_name(type(self.base)),
            "callable": describe(self.name),
            "wrappers": describe_wrappers(self.env),
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the environment's attributes that are numbers or arrays, each ``(N, ...)``."""
        memories = [self._pickle.loads(self._unsealed(payload))[-1] for payload in payloads]
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
            raise self._too_small(used)
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
        self._pickle.restore(self._pickle.loads(self._unsealed(payload)))

    def write_base(self, payload: Row) -> None:
        """Do what `write` does: base and wrappers are one."""
        self.write(payload)

    def reseed(self, seed: int) -> None:
        """Give the base and every wrapper that draws numbers of its own a new generator."""
        own = vars(self.base).get("_np_random")
        self.base._np_random = random_state.seeded_generator(seed)
        number = 0
        for holder in self._pickle.holders:
            for _, value in holder.items(holder.read()):
                if not isinstance(value, np.random.Generator) or value is self.base._np_random:
                    continue
                number += 1
                fresh = np.random.PCG64(np.random.SeedSequence([int(seed), number]))
                ...
        del own

    def _unsealed(self, payload: Row) -> bytes:
        (length,) = _LENGTH.unpack(payload[: _LENGTH.size].tobytes())
        if length > len(payload) - _START:
            raise StateFormatError("the pickle in a state row is damaged: its length")
        data = payload[_START : _START + length].tobytes()
        tag = payload[_LENGTH.size : _START].tobytes()
        if not self._allow_pickle and not hmac.compare_digest(tag, _tag(data)):
            raise UntrustedStateError(
                "a state row holds a pickle that was not made in this session; unpickling it could run "
                "any code. If you trust its source, make the environment with allow_pickle=True"
            )
        return data
