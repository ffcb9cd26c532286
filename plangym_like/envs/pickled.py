"""Any environment written in Python, saved as a pickle of its attributes.

The state consists of all attributes of the environment and its wrappers, except spaces, specs and
windows (see `plangym_like.snapshots.chain_pickle`). When the environment is made, it is saved,
stepped, restored and stepped again; if the results differ, a `SnapshotError` is raised.

A pickle does not keep the order in which a set is iterated. Nearly all environments only ask
whether a set holds an item. To find the others, the trial restores each set in another order, and
so does the copy in which audits step. An environment is approximate if it has a set of objects that
hash by their address.

A row holds a length, a tag and the pickle. Unpickling runs code, so the tag, a keyed hash of the
pickle, is checked first. Only this session and its workers have the key. Two rows of the same state
may differ in a few bytes, because a pickle records the order of sets, and whether two equal strings
are one object.
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
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv, suggest_state_attributes
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import drop_generators, first_reset
from plangym_like.errors import (
    PlangymError,
    SnapshotError,
    StateCapacityError,
    StateFormatError,
    UntrustedStateError,
)
from plangym_like.snapshots.chain_pickle import ChainPickle
from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.differences import difference
from plangym_like.snapshots.known_wrappers import columns_of
from plangym_like.snapshots.trial import MEASURED_STEPS, while_quick
from plangym_like.states import random_state
from plangym_like.states.rows import Row, padded, session_key

_TAG_NBYTES = 16
# The length of the pickle, and its tag.
_HEAD = struct.Struct(f"<Q{_TAG_NBYTES}s")
_SLACK = 1024


class PickleCodec(Codec):
    """Saves the environment and its wrappers as one pickle, with its length and its tag.

    The constructor takes a few steps to find out how many bytes are needed.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers, reset at least once.
    name : str or callable
        The id or callable that the environment was made from.
    allow_pickle : bool
        Whether to load pickles from other sessions.
    capacity : int, optional
        Bytes reserved for a payload; by default, at least twice the size of the first payloads.
    steps : int
        The maximum number of steps that the constructor takes. With 0, `capacity` is known to be
        enough.
    """

    saves_generator = False

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        name: Any,
        *,
        steps: int,
        capacity: int | None,
        allow_pickle: bool,
    ) -> None:
        self._env, self._name, self._allow_pickle = env, name, allow_pickle
        self.pickle = ChainPickle(env)
        needed = _HEAD.size + self._longest(steps)
        if capacity is None:
            # A power of two, so that small differences between processes do not change the width.
            capacity = 1 << (2 * needed + _SLACK - 1).bit_length()
        elif needed > capacity:
            raise _too_small(needed, capacity)
        self.nbytes = padded(capacity)
        self.pickle.unordered = self.pickle.look_for_sets()

    def _longest(self, steps: int) -> int:
        """Take up to `steps` steps, if any, and return the length of the longest pickle."""
        env, longest = self._env, len(self.pickle.encoded())
        if not steps:
            return longest
        if links(env)[-1]._np_random is None:
            links(env)[-1]._np_random = random_state.seeded_generator(0)
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        # Some environments take only actions that are legal in their current state.
        with contextlib.suppress(Exception):
            for _ in while_quick(range(steps)):
                *_, terminated, truncated, _ = env.step(space.sample())
                longest = max(longest, len(self.pickle.encoded()))
                if terminated or truncated:
                    break
        return longest

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the class of the environment, and the callable that makes it, if any."""
        return {
            "class": qualified_name(type(links(self._env)[-1])),
            "callable": None if isinstance(self._name, str) else describe(self._name),
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the environment's attributes that are numbers or arrays, each ``(N, ...)``."""
        return columns_of([self._values(row)[-1] for row in payloads])

    def difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return where two payloads first differ in their values, and the two values.

        The pickles are not compared, because equal values may have unequal pickles. Return ``None``
        if all values are equal.
        """
        places = [owner.place for owner in self.pickle.owners]
        before, after = (dict(zip(places, self._values(row), strict=True)) for row in (one, other))
        return difference(before, after)

    def reseed(self, seed: int) -> None:
        random_state.reseed(links(self._env)[-1], seed)

    def read(self, payload: Row) -> int:
        """Write length, tag and pickle into `payload`; return the number of bytes used."""
        data = self.pickle.encoded()
        used, memory = _HEAD.size + len(data), payload.data
        if used > len(memory):
            raise _too_small(used, len(memory))
        memory[:used] = _HEAD.pack(len(data), _tag(data)) + data
        return used

    def write(self, payload: Row) -> None:
        """Unpickle `payload` and make it the current state.

        Raises
        ------
        UntrustedStateError
            The row was not made in this session.
        StateFormatError
            The row is damaged; nothing has changed.
        """
        self.pickle.restore(self.pickle.decoded(self._checked(payload)))

    def _values(self, payload: Row) -> list[dict[str, Any]]:
        return self.pickle.decoded(self._checked(payload))

    def _checked(self, payload: Row) -> bytes:
        """Return the pickle in `payload`; check its tag first, unless `allow_pickle` is true."""
        memory = payload.data
        length, tag = _HEAD.unpack_from(memory)
        if length > len(memory) - _HEAD.size:
            raise StateFormatError("the pickle in a state row is damaged: its length is wrong")
        data = memory[_HEAD.size : _HEAD.size + length].tobytes()
        if not self._allow_pickle and not hmac.compare_digest(tag, _tag(data)):
            raise UntrustedStateError(
                "a state row holds a pickle that was not made in this session; unpickling it could "
                "run any code. If you trust its source, make the environment with allow_pickle=True"
            )
        return data


class PickledSimulator(GymnasiumSimulator):
    """A simulator of a Gymnasium environment that is written in pure Python.

    Parameters
    ----------
    state_capacity : int, optional
        Bytes for the snapshot in each row; by default at least twice the bytes that the environment
        needed when it was made.
    allow_pickle : bool
        Whether to unpickle rows from other sessions. Such a row can run arbitrary code: use this
        only for files that you trust.
    name, simulator_kwargs
        As in `GymnasiumSimulator`.

    Raises
    ------
    SnapshotError
        The environment cannot be pickled, or gives other results after it is restored. The
        message says what failed, where, and what to do.
    """

    family = "PICK"
    snapshot = "pickle"
    checksum = True
    variable = True
    always_tried: ClassVar[bool] = True
    codec: PickleCodec

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

    def restorer(self) -> Callable[[], None]:
        """Return a function that restores the new environment and its wrappers."""
        return ChainPickle(self.env).restorer()

    def make_codec(self) -> PickleCodec:
        """Reset the environment, and return the codec."""
        first_reset(self.env)
        known = self._trial_result
        codec = PickleCodec(
            self.env,
            self.name,
            steps=MEASURED_STEPS if known is None else 0,
            capacity=self.state_capacity if known is None else known.capacity,
            allow_pickle=self._allow_pickle,
        )
        drop_generators(self.env)
        return codec

    def read(self, payload: Row) -> int:
        """Save the environment and its wrappers to `payload`; return the number of bytes used."""
        return self.codec.read(payload)

    def write(self, payload: Row) -> None:
        """Restore the environment and its wrappers from `payload`."""
        self.codec.write(payload)

    def make_memory(self) -> ChainPickle:
        """Return the codec's `ChainPickle`, which saves the wrappers as well."""
        return self.codec.pickle

    def _run_trial(self) -> str:
        """Run the trial; its errors say that they are about a pickle."""
        try:
            note = super()._run_trial()
            if not note:
                suggest_state_attributes(self, self.base, "a pickle")
            return note
        except StateFormatError as error:
            raise SnapshotError(f"a pickle of it cannot be loaded: {error.__cause__}") from error
        except SnapshotError:
            if self.codec.pickle.unordered:
                return ""  # such an order makes states approximate anyway
            raise
        except PlangymError:
            raise
        except Exception as error:
            raise SnapshotError(
                f"after it was restored from a pickle, it raised {type(error).__name__}: {error}"
            ) from error

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return where two payloads differ in their values; see `PickleCodec.difference`."""
        return self.codec.difference(one, other)


class PickledEnv(FamilyEnv):
    """A `PlanEnv` of a Gymnasium environment that is written in pure Python.

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
