"""Gymnasium's classic control: CartPole, MountainCar, MountainCarContinuous, Pendulum, Acrobot.

Payload of a row::

    float64 * size   the physical state, ``env.state``
    4 or 8 bytes     CartPole's steps_beyond_terminated (int32, -1 for None), Pendulum's last_u
                     (float64, NaN for None), or 4 unused bytes
    4 or 8 bytes     1 if ``env.state`` is in single precision, else 0
    40 bytes         the random generator
    ...              the wrappers' state

If there are no wrappers except a time limit and those of `envs.transforms`, and `classic.equations`
supports the configuration, whole blocks of rows are stepped at once. Otherwise, rows are stepped
one by one. Both ways give the same results.
"""

from __future__ import annotations

import contextlib
import copy
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome
from plangym_like.envs.classic.equations import DYNAMICS, Dynamics, Motions
from plangym_like.envs.codec import Attribute, AttributeCodec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import ArrayKernel, Kernel, NotVectorisableError, Outcomes
from plangym_like.errors import InputError, SnapshotError, StateFormatError
from plangym_like.states.rows import HEADER_NBYTES, Row

_COUNT = struct.Struct("<q")
_STEPPED_AGAIN = r".*You are calling 'step\(\)' even though"


class ClassicControlCodec(AttributeCodec):
    """Saves the state of one of the five classic control environments.

    Raises
    ------
    SnapshotError
        The environment is not one of them: a subclass may have more state.
    """

    def __init__(self, base: Any) -> None:
        if type(base) not in DYNAMICS:
            raise SnapshotError(
                f"{type(base).__name__} is not one of the classic control environments: "
                f"{', '.join(sorted(cls.__name__ for cls in DYNAMICS))}; use "
                "plangym_like.AnyEnv for it"
            )
        self.dynamics = DYNAMICS[type(base)]
        self._size, hidden = len(self.dynamics.order), self.dynamics.no_hidden.dtype
        super().__init__(
            base,
            (
                Attribute("x", np.float64, (self._size,)),
                Attribute(self.dynamics.hidden or "unused", hidden),
                Attribute("single", f"i{hidden.itemsize}"),
            ),
        )
        self.columns = {}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        constants = self.dynamics.settings(self._base)
        return {"class": type(self._base).__name__, "constants": [*map(repr, constants)]}

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``x`` ``(N, size)`` and, for some classes, one more attribute ``(N,)``.

        The attribute is ``steps_beyond_terminated`` or ``last_u``; -1 or NaN means ``None``.
        """
        found = super().view(payloads)
        return {name: found[name] for name in ("x", self.dynamics.hidden) if name in found}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the physical state ``x`` ``(size,)`` into `payload`, as of an unfinished episode.

        The numbers in ``x`` have the order and units of ``env.state``.
        """
        unknown = sorted(physics.keys() - {"x"})
        if unknown:
            raise InputError(
                f"states of {type(self._base).__name__} are built from x and, with a time limit, "
                f"elapsed_steps, not from {', '.join(unknown)}"
            )
        if "x" in physics:
            x = _finite(physics["x"], self._size)
            largest = self.dynamics.largest(self._base)
            if max(map(abs, x)) > largest:
                raise InputError(
                    f"{type(self._base).__name__} cannot be stepped from a state with a number "
                    f"outside -{largest:g} to {largest:g}, got x={physics['x']!r}"
                )
            self.fields(payload[None])[0] = x, self.dynamics.no_hidden, 0

    def values(self) -> Sequence[Any]:
        """Return ``env.state`` in double precision, the other attribute, and the precision."""
        base, dynamics = self._base, self.dynamics
        state = np.asarray(base.state)
        if state.shape != (self._size,) or state.dtype.char not in "dfliq":
            raise SnapshotError(
                f"the state of {type(base).__name__} is {self._size} numbers in single or double "
                f"precision, but it was set to {base.state!r}"
            )
        hidden = getattr(base, dynamics.hidden) if dynamics.hidden else None
        no_hidden = dynamics.no_hidden if hidden is None else hidden
        return state.astype(np.float64), no_hidden, int(state.dtype.char == "f")

    def put(self, values: Sequence[Any]) -> None:
        base, (state, hidden, single) = self._base, values
        largest = self.dynamics.largest(base)
        if largest < np.inf and (np.abs(state) > largest).any():
            raise StateFormatError(
                f"{type(base).__name__} cannot be stepped from the state {state}: the row is "
                "damaged, or made of numbers that are far out of bounds"
            )
        with np.errstate(over="ignore"):
            base.state = state.astype(np.float32) if single & 1 else state
            if self.dynamics.hidden:
                setattr(base, self.dynamics.hidden, self.dynamics.as_hidden(hidden))


class ClassicBlocks(ArrayKernel[Motions]):
    """Steps blocks of rows of one environment, with the constants that it has now.

    Parameters
    ----------
    sim : ClassicControlSimulator
    """

    # The columns of this many rows fit into a core's own cache.
    most = 8192

    def __init__(self, sim: Any) -> None:
        super().__init__(sim)
        self._dynamics: Dynamics = sim.codec.dynamics(sim.base)
        dynamics = self._dynamics
        self._largest = dynamics.largest(sim.base)
        begin, size = HEADER_NBYTES // 8, len(dynamics.order)
        hidden = dynamics.no_hidden.dtype
        # The layout of `ClassicControlCodec`.
        self._packing = struct.Struct(f"={size}d{hidden.char}{'iq'[hidden.itemsize == 8]}")
        self._places = slice(begin, begin + size)
        # The numbers of one state are copied together, which is faster than one by one.
        self._bytes = slice(8 * begin, 8 * (begin + size))
        self._whole = np.dtype((np.void, 8 * size))
        width, place = hidden.itemsize, 8 * (begin + size)
        self._hidden_at = place // width
        self._flags = np.dtype(f"i{width}")
        self._x, self._states = np.empty((size, 0)), np.empty((0, size))
        # Whether `_states` holds the same numbers as the `Motions`.
        self._is_turned = False

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        if dt * self._frameskip != 1:
            return None
        memory = row.data
        *x, hidden, flags = self._packing.unpack_from(memory, HEADER_NBYTES)
        found = None if flags else self._dynamics.advance_one(x, hidden, action)
        if found is None:
            return None
        reached, hidden, reward, terminated = found
        fresh = row.copy()
        self._packing.pack_into(fresh.data, HEADER_NBYTES, *reached, hidden, 0)
        truncated = False
        if self._time_limit is not None:
            (elapsed,) = _COUNT.unpack_from(memory, 8 * self._elapsed_at)
            _COUNT.pack_into(fresh.data, 8 * self._elapsed_at, elapsed + 1)
            truncated = elapsed + 1 >= self._time_limit._max_episode_steps
        return fresh, (np.array(reached, np.float32), reward, terminated, truncated, {}, 1)

    def load(self, given: Row, count: int) -> Motions:
        dynamics, size = self._dynamics, len(self._dynamics.order)
        if self._x.shape[1] != count:
            # A single statement, so that a Ctrl-C cannot leave only some of them assigned.
            self._x, self._states = np.empty((size, count)), np.empty((count, size))
        dynamics.load(given.view(np.float64)[:, self._places], self._x)
        if self._largest < np.inf:
            least, most = np.min(self._x, initial=0.0), np.max(self._x, initial=0.0)
            if not -self._largest <= least <= most <= self._largest:
                raise NotVectorisableError  # a row is refused, or holds NaN
        flags = given.view(self._flags)[:, self._hidden_at + 1]
        hidden = given.view(dynamics.no_hidden.dtype)[:, self._hidden_at]
        single = None
        if dynamics.takes_single:
            single = _copies((flags & 1) != 0, count)
        elif np.count_nonzero(flags):
            raise NotVectorisableError
        return Motions(self._x, _copies(hidden, count), single)

    def frame(self, states: Motions, actions: NDArray[Any], out: Outcomes) -> None:
        self._is_turned = False
        self._dynamics.advance(states, actions, out.rewards, out.terminated)
        if states.single is not None:
            states.single.fill(self._dynamics.leaves_single)

    def observe(self, states: Motions, out: NDArray[Any]) -> None:
        self._turn(states)
        self._dynamics.observe(states.x, self._states, out)

    def store(self, states: Motions, fresh: Row) -> None:
        self._turn(states)
        fresh[:, self._bytes].view(self._whole)[:, 0] = self._states.view(self._whole)[:, 0]
        fresh.view(states.hidden.dtype)[:, self._hidden_at] = states.hidden
        if states.single is not None:
            fresh.view(self._flags)[:, self._hidden_at + 1] = states.single

    def _turn(self, states: Motions) -> None:
        if not self._is_turned:
            self._dynamics.store(states.x, self._states)
            self._is_turned = True


class ClassicControlSimulator(GymnasiumSimulator):
    """A simulator of one of the five classic control environments.

    `make_state` takes the physical state ``x`` ``(size,) float64`` and, if there is a time limit,
    ``elapsed_steps``.
    """

    family = "CLAS"
    other_ways = ("pickle", "replay")
    codec: ClassicControlCodec

    def make_codec(self) -> ClassicControlCodec:
        """Reset the environment and return the codec for its class."""
        codec = ClassicControlCodec(self.base)
        self.reset_once()
        return codec

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel."""
        return ClassicBlocks(self)

    def configuration(self) -> tuple[Any, ...]:
        return self.codec.dynamics.settings(self.base)

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row with Python numbers, not arrays; return ``None`` if this is not possible."""
        kernel = self.kernel_for(action)
        return None if kernel is None else kernel.step_one(row, action, dt)

    @property
    def steps_env_alone(self) -> bool:
        # From the last state of an episode, CartPole's own step warns; `step` does not.
        is_last = getattr(self.base, "steps_beyond_terminated", None) == 0
        return not is_last and super().steps_env_alone

    def step(self, action: Any, dt: int) -> Outcome:
        """Step the environment itself; do not warn if the episode has already ended."""
        with np.errstate(all="ignore"):
            if getattr(self.base, "steps_beyond_terminated", None) != 0:
                return super().step(action, dt)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _STEPPED_AGAIN)
                return super().step(action, dt)


class ClassicControlEnv(FamilyEnv):
    """A classic control environment that can be stepped from any state.

    `view_state` returns the variables of states, and `make_state` makes states from variables.

    Examples
    --------
    >>> env = ClassicControlEnv("MountainCar-v0")
    >>> state, obs, info = env.reset(seed=0)
    >>> near = env.make_state(x=[0.49, 0.04])  # position and velocity
    >>> env.view_state(near)["x"]
    array([0.49, 0.04])
    >>> env.step_batch([0, 1, 2], near).terminateds
    array([ True,  True,  True])
    """

    simulator_class = ClassicControlSimulator


def agrees(env: Any) -> bool:
    """Return whether `env`, without wrappers, has a kernel that agrees with it."""
    twin = copy.copy(env)
    twin.render_mode = None
    action = np.zeros(0, env.action_space.dtype)
    with contextlib.suppress(Exception):
        return ClassicControlSimulator(lambda: twin).kernel_for(action) is not None
    return False


def _copies(column: NDArray[Any], count: int) -> NDArray[Any]:
    return column.copy() if len(column) == count else column.repeat(count)


def _finite(numbers: Any, size: int) -> list[float]:
    try:
        x = np.asarray(numbers, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"x must be {size} numbers, got {numbers!r}") from error
    if x.shape != (size,) or not np.isfinite(x).all():
        raise InputError(f"x must be {size} finite numbers, got {numbers!r}")
    return list(x.tolist())
