"""Environments that define their state themselves, with ``save_state`` and ``load_state``.

``save_state()`` returns the state: numbers, arrays, text, and nested containers of them. The
optional method ``step_states`` steps many rows at once. When the environment is made, all three
methods are tested against ``step``; a `SnapshotError` is raised if they disagree.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.envs.batched_step import BatchedStep
from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.fast_form import FastForm, disagreement
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import first_reset, forget_seed
from plangym_like.errors import PlangymError, SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.base_settings import Settings
from plangym_like.snapshots.chains import innermost
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.differences import attributes_of, difference
from plangym_like.snapshots.known_wrappers import visible
from plangym_like.snapshots.open_libraries import close_copy
from plangym_like.snapshots.set_order import order_note
from plangym_like.snapshots.state_owner import kind_of, put
from plangym_like.snapshots.trial import TrialRule
from plangym_like.states.rows import Row, padded

_METHODS = ("save_state", "load_state")
_SLACK = 1024
# After so many steps of an episode, it is known which attributes an environment changes itself.
_PLAYED = 100


class SaveLoadCodec(Codec):
    """Saves and restores states with the environment's ``save_state`` and ``load_state``.

    Parameters
    ----------
    base : gymnasium.Env
        An environment with these methods, reset at least once.
    name : str or callable
        The id or callable that the environment was made from.
    capacity : int, optional
        Bytes for states that are not arrays.
    initial : bytes, optional
        The state and the random generators before the first reset, as `plain_data` encodes them.

    Attributes
    ----------
    example : array, optional
        An array with the dtype and shape of states, if states are arrays. Payloads then begin with
        the bytes of the array, without a length.
    """

    def __init__(
        self, base: Any, name: Any, capacity: int | None, initial: bytes | None = None
    ) -> None:
        self._base, self._name, self._initial = base, name, initial
        try:
            saved = base.save_state()
        except Exception as error:
            raise _refusal(base, "save_state", error) from error
        self.example: NDArray[Any] | None = None
        self._is_made = False
        if _is_plain_array(saved):
            self.example = np.empty_like(saved)
            self.nbytes = padded(saved.nbytes)
        else:
            needed = 8 + len(self._encoded(saved))
            self.nbytes = padded(capacity or 2 * needed + _SLACK)
        self._is_made = True

    def fingerprint_fields(self) -> Mapping[str, Any]:
        example = self.example
        return {
            "class": qualified_name(type(self._base)),
            "callable": None if isinstance(self._name, str) else describe(self._name),
            "state": None if example is None else [example.dtype.str, *example.shape],
            "generator": "behind the state",
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the field ``state`` ``(N, *shape)``, if states are arrays."""
        return {} if self.example is None else {"state": self._arrays(payloads)}

    def _arrays(self, payloads: Row) -> NDArray[Any]:
        assert self.example is not None
        raw = np.ascontiguousarray(payloads[:, : self.example.nbytes])
        return raw.view(self.example.dtype).reshape(len(payloads), *self.example.shape)

    def _encoded(self, saved: Any) -> bytes:
        try:
            return plain_data.encode(saved, on_set=self._note_set)
        except SnapshotError as error:
            raise SnapshotError(
                f"the state that {type(self._base).__name__}.save_state() returned cannot be "
                f"saved: {error}"
            ) from error

    def _note_set(self, value: Any) -> None:
        place = f"{type(self._base).__name__}.save_state()"
        if self.exactness == "exact" and self._is_made:
            raise SnapshotError(
                f"{order_note(place, value)}. There was no such set when the environment was made"
            )
        self.exactness, self.exactness_note = "approximate", order_note(place, value)

    def settings(self) -> Sequence[Settings]:
        return (_LeftOut(self._base),)

    def read(self, payload: Row) -> None:
        saved = self._base.save_state()
        if self.example is None:
            data = self._encoded(saved)
            end = 8 + len(data)
            if end > len(payload):
                raise StateCapacityError(
                    f"a state of {end} bytes is larger than the {len(payload)} reserved; make the "
                    f"environment with state_capacity={padded(2 * end)}"
                )
            payload[:8].view(np.uint64)[0] = len(data)
            payload[8:end] = np.frombuffer(data, np.uint8)
            payload[end:] = 0
            return
        if isinstance(saved, np.generic):  # NumPy returns scalars for zero-dimensional arrays
            saved = np.asarray(saved)
        if not _is_plain_array(saved):
            raise SnapshotError(
                f"{type(self._base).__name__}.save_state() returned {kind_of(saved)}, but an array "
                "when the environment was made"
            )
        if saved.dtype != self.example.dtype or saved.shape != self.example.shape:
            raise SnapshotError(
                f"{type(self._base).__name__}.save_state() returned {saved.dtype}{saved.shape}, "
                f"but {self.example.dtype}{self.example.shape} when the environment was made"
            )
        payload[: saved.nbytes] = np.frombuffer(saved.tobytes(), np.uint8)
        payload[saved.nbytes :] = 0

    def write(self, payload: Row) -> None:
        if self.example is None:
            used = int(payload[:8].view(np.uint64)[0])
            if used > len(payload) - 8:
                raise StateFormatError("a state row is damaged: its length is wrong")
            saved = plain_data.decode(payload[8 : 8 + used].tobytes())
        else:
            saved = self._arrays(payload[None])[0].copy()
        self._base.load_state(saved)

    def renew(self) -> None:
        """Load the state saved before the first reset, if there is one and it can be loaded."""
        if self._initial is not None:
            with contextlib.suppress(Exception):
                saved, generators = plain_data.decode(self._initial)
                self._base.load_state(saved)
                for name, generator in generators.items():
                    put(self._base, name, generator)


class _LeftOut(Settings):
    """Plain data in attributes of an environment that its ``load_state`` does not restore.

    The constructor plays some steps without the wrappers, because data that the environment itself
    changes is its own business. The current state stays the same.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self._first, self._then = plain_data.encode(base.save_state()), self._read()
        actions = copy.deepcopy(base.action_space)
        actions.seed(0)
        self._own: set[str] = set()
        with contextlib.suppress(Exception):
            for seed in range(2):
                base.reset(seed=seed)
                for _ in range(_PLAYED):
                    if any(base.step(actions.sample())[2:4]):
                        break
                self._own |= self._not_restored()
        base.load_state(plain_data.decode(self._first))

    def change(self, *, thorough: bool = False) -> str:
        changed = self._not_restored() - self._own if thorough else ()
        for name in sorted(changed):
            then, now = plain_data.decode(self._then[name]), plain_data.decode(self._read()[name])
            found = difference(then, now)
            values = found[1].replace(" and ", " to ", 1) if found else "one object to another"
            return f"{type(self._base).__name__}.{name} changed from {values}"
        return ""

    def _not_restored(self) -> set[str]:
        """Return the names of the data that do not come back if the first state is loaded."""
        base, saved = self._base, plain_data.encode(self._base.save_state())
        base.load_state(plain_data.decode(self._first))
        now = self._read()
        base.load_state(plain_data.decode(saved))
        return {name for name in self._then if name in now and now[name] != self._then[name]}

    def _read(self) -> dict[str, bytes]:
        found = attributes_of(self._base)
        found.pop("_np_random", None)  # rows hold it, but not as a part of this state
        return found


def _generators(base: Any) -> dict[str, np.random.Generator]:
    """Return the random generators in attributes of `base`, except ``np_random``.

    ``save_state`` may leave out a generator that only resets use.
    """
    return {
        name: value
        for name, value in vars(base).items()
        if isinstance(value, np.random.Generator)
        and isinstance(value.bit_generator, np.random.PCG64)
        and name != "_np_random"
    }


def _is_plain_array(saved: Any) -> bool:
    """Return whether `saved` is an array whose bytes are its whole content.

    This is false for masked arrays, which also have a mask, and for arrays of objects or of
    variable-length strings, which hold addresses.
    """
    return type(saved) is np.ndarray and not saved.dtype.hasobject


class SaveLoadSimulator(GymnasiumSimulator):
    """A simulator of a Gymnasium environment with ``save_state`` and ``load_state``.

    ``save_state()`` returns the state as plain data. An array that always has the same shape makes
    the smallest rows, and allows stepping many rows at once. ``load_state(saved)`` sets the state
    to ``saved``, and may keep this object. If ``save_state`` works before the first reset, the
    state from that time is loaded again before the user's first reset. So the resets and steps that
    are taken when the environment is made leave no trace, such as a higher count of episodes.
    Otherwise, the environment is approximate if these resets change it.

    The optional ``step_states(states, actions)`` takes states ``(N, *shape)`` and N actions. It
    returns the same next states, observations, rewards, terminateds and truncateds as ``step``,
    each with N rows, but no infos. It must not draw random numbers.

    The arguments are as in `GymnasiumSimulator`; ``state_capacity`` is for states that are not
    arrays.

    Raises
    ------
    SnapshotError
        A method is missing, returns something other than plain data, or disagrees with ``step``.
    """

    family = "OWNS"
    checksum = True
    trial: ClassVar[TrialRule] = TrialRule(always=True)
    codec_class: ClassVar[type[SaveLoadCodec]] = SaveLoadCodec
    codec: SaveLoadCodec

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._steps_states():
            self._check_step_states(np.dtype(self.action_space.dtype).char)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment; raise `SnapshotError` if it lacks one of the two methods."""
        env = super().make_env()
        missing = [name for name in _METHODS if not callable(getattr(innermost(env), name, None))]
        if missing:
            advice = _advice_for_mujoco(innermost(env))
            # Some environments cannot be closed before their first reset.
            close_copy(env)
            raise SnapshotError(
                f"{qualified_name(type(innermost(env)))} has no {' and no '.join(missing)}{advice}"
            )
        return env

    def make_codec(self) -> SaveLoadCodec:
        """Reset the environment, and return its codec."""
        initial: bytes | None = None
        # Before their first reset, some environments have no state that could be saved.
        with contextlib.suppress(Exception):
            initial = plain_data.encode((self.base.save_state(), _generators(self.base)))
        # This reset is seeded, because the saved form of an unseeded generator has a different
        # length in each process.
        first_reset(self.env)
        codec = self.codec_class(self.base, self.name, self.state_capacity, initial)
        if initial is None and self._remembers_episodes(codec):
            codec.exactness = "approximate"
            codec.exactness_note = (
                f"{type(self.base).__name__}.save_state raises before the first reset, and a "
                "second episode with the same seed begins in another state, so your first episode "
                "is not the first one; make save_state work before the first reset"
            )
        forget_seed(self.env)
        return codec

    def _remembers_episodes(self, codec: SaveLoadCodec) -> bool:
        """Return whether a second reset with the same seed leads to a different state."""
        first, second = np.zeros((2, codec.nbytes), np.uint8)
        codec.read(first)
        first_reset(self.env)
        codec.read(second)
        return not np.array_equal(first, second)

    def _try_out(self) -> None:
        """Check that ``load_state`` takes the result of ``save_state``, and run the trial."""
        payload = np.zeros(self.payload_nbytes, np.uint8)
        self.read(payload)
        try:
            self.codec.write(payload[: self.codec.nbytes])
        except PlangymError:
            raise
        except Exception as error:
            raise _refusal(self.base, "load_state", error) from error
        super()._try_out()

    def _steps_states(self) -> bool:
        """Return whether ``step_states`` can be used to step many rows at once."""
        own = callable(getattr(self.base, "step_states", None))
        return own and not visible(self.env) and not self._images

    def _check_step_states(self, kind: str) -> None:
        """Raise `SnapshotError` if the results of ``step_states`` and ``step`` differ."""
        if self.codec.example is None or not spaces.is_leaf(self.observation_space):
            raise SnapshotError(
                "step_states needs states that are arrays of one shape, and observations that are "
                "one array each"
            )
        where = disagreement(self._batched_step(), self, kind, plays_on=False, beyond=1.0)
        if where:
            raise SnapshotError(
                f"{type(self.base).__name__}.step_states does not do what step does: {where}. "
                "Leave step_states out if step draws random numbers or gives infos"
            )

    def _batched_step(self) -> BatchedStep:
        assert self.codec.example is not None and isinstance(self.frameskip, int)
        return BatchedStep(
            self.base.step_states, self.codec.example, self.observation_space, self.frameskip
        )

    def make_fast_form(self, kind: str) -> FastForm | None:
        """Return the form that calls ``step_states``.

        Return ``None`` if ``step_states`` cannot be used, or disagrees with ``step`` for actions of
        dtype `kind`.
        """
        if not self._steps_states():
            return None
        try:
            self._check_step_states(kind)
        except SnapshotError:
            return None
        return self._batched_step()


def _advice_for_mujoco(base: Any) -> str:
    """Return how to write the two methods if an attribute of `base` is MuJoCo's data.

    Otherwise, or if bodies may sleep, return ``""``: MuJoCo's functions do not save which do.
    """
    for name, value in getattr(base, "__dict__", {}).items():
        kind = type(value)
        if kind.__name__ == "MjData" and kind.__module__.partition(".")[0] == "mujoco":
            from plangym_like.envs.mujoco.physics import may_sleep

            if may_sleep(value.model):
                return ""
            return (
                f"; its attribute {name} is MuJoCo's MjData, so write them: save_state returns the "
                "array that mujoco.mj_getState fills for mujoco.mjtState.mjSTATE_INTEGRATION and "
                "the attributes that steps change, and load_state gives the array to "
                "mujoco.mj_setState; this is faster than pickle and replay"
            )
    return ""


def _refusal(base: Any, method: str, error: Exception) -> SnapshotError:
    return SnapshotError(
        f"{type(base).__name__}.{method} raised {type(error).__name__}: {error}; save_state() must "
        "return the state, and load_state(state) must restore it"
    )


class OwnEnv(FamilyEnv):
    """A `PlanEnv` of an environment that has ``save_state`` and ``load_state``.

    Examples
    --------
    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> class Pendulum(PendulumEnv):
    ...     def save_state(self):
    ...         return self.state
    ...     def load_state(self, state):
    ...         self.state = state
    >>> env = OwnEnv(Pendulum)
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([[0.5], [-0.5]], state).rewards.round(3)
    array([-0.762, -0.762])
    """

    simulator_class = SaveLoadSimulator
