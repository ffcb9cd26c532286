"""Gymnasium's classic control: CartPole, MountainCar, MountainCarContinuous, Pendulum, Acrobot.

Payload of a row::

    float64 * size   the physical state, ``env.state``
    4 or 8 bytes     what is beside it: CartPole's steps_beyond_terminated (int32, -1 for None),
                     Pendulum's last_u (float64, NaN for None), 4 unused bytes elsewhere
    as many          1 where ``env.state`` is single precision, else 0; Pendulum adds 2 where last_u
                     is double, and 4 where it is half precision
    40 bytes         the random generator
    ...              the wrappers' memory

Where nothing but a time limit is wrapped around the environment, and `classic_dynamics` covers its
configuration, whole chunks of rows are stepped at once; else row by row. The results are the same.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batches import Rows
from plangym_like.envs.classic_dynamics import FORMS, BlockStepper, NotVectorisableError, agrees
from plangym_like.envs.classic_dynamics.dynamics import Dynamics
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import InputError, SnapshotError, StateFormatError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import GENERATOR_NBYTES, load_generator, save_generator
from plangym_like.simulator import Outcome
from plangym_like.states import HEADER_NBYTES, Row

# Rows that are stepped at once: few enough for their columns to stay in a core's own cache.
_BLOCK = 8192
# A row on its own is stepped sooner by the environment itself.
_WORTHWHILE = 2
_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
_STEPPED_AGAIN = r".*You are calling 'step\(\)' even though"


class ClassicControlSimulator(GymnasiumSimulator):
    """One of the five environments, or a subclass of one.

    States are made of ``x``, the physical state ``(size,) float64``, and, where a time limit is
    kept, ``elapsed_steps``.
    """

    family = "CLAS"
    copies_headers = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._signature: tuple[Any, ...] = ()
        self._steppers: dict[str, BlockStepper | None] = {}
        super().__init__(*args, **kwargs)
        self._note_inexactness()
        self._vectorisable = self._is_plain()
        self.plain_infos = not self._vectorisable

    def prepare(self) -> None:
        """Find out which of the five it is, and reset it."""
        known = [cls for cls in type(self.base).__mro__ if cls in FORMS]
        if not known:
            raise SnapshotError(
                f"{type(self.base).__name__} is none of the classic control environments: "
                f"{', '.join(sorted(cls.__name__ for cls in FORMS))}"
            )
        self._known = known[0]
        self._form: type[Dynamics] = FORMS[self._known]
        self._size = size = len(self._form.order)
        hidden = self._form.no_hidden.dtype
        flags = "i" if hidden.itemsize == 4 else "q"
        self._packing = struct.Struct(f"={size}d{hidden.char}{flags}{GENERATOR_NBYTES}s")
        super().prepare()

    def _note_inexactness(self) -> None:
        if type(self.base) is self._known:
            return
        plain = self._known()
        plain.reset(seed=0)
        own = vars(self.base).keys() - vars(plain).keys() - {"spec"}
        if own:
            self.exactness = "approximate"
            self.exactness_note = (
                f"state rows do not hold what {type(self.base).__name__} adds to "
                f"{self._known.__name__}: {', '.join(sorted(own))}"
            )

    def _is_plain(self) -> bool:
        """Tell whether observation, reward and flags are the environment's own."""
        link = self.env
        while isinstance(link, gymnasium.Wrapper):
            if type(link) not in _TRANSPARENT:
                return False
            link = link.env
        limited = self.memory.nbytes and self.memory.time_limit is None
        return type(link) is self._known and not limited and not self._pictures

    # What is the state

    def base_nbytes(self) -> int:
        """Return the bytes of state, hidden attribute, precision and generator."""
        return self._packing.size

    def meaning(self) -> Mapping[str, Any]:
        """Add the class and the constants of the dynamics."""
        signature = self._form.signature(self.base)
        return {
            **super().meaning(),
            "class": f"{type(self.base).__module__}.{type(self.base).__qualname__}",
            "constants": [repr(value) for value in signature or ()],
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``x`` ``(N, size)`` and what is beside it, ``(N,)``, -1 or NaN for ``None``."""
        fields: dict[str, NDArray[Any]] = {"x": payloads[:, : 8 * self._size].view(np.float64)}
        if self._form.hidden:
            kind = self._form.no_hidden.dtype
            fields[self._form.hidden] = payloads[:, self._hidden].view(kind)[:, 0]
        return {**fields, **self.memory.fields(payloads[:, self._base_nbytes :])}

    def compose(self, payload: Row, **physics: Any) -> None:
        """Put physical quantities into `payload`.

        Parameters
        ----------
        payload : row
            A copy of a state's, which keeps what is not named here.
        physics
            ``x`` ``(size,)``: the physical state, in the order and units of ``env.state``; the
            state made so has not ended. ``elapsed_steps``: how much of the time limit is used up.

        Raises
        ------
        InputError
            A name is unknown, or a value is not finite or of another shape.
        """
        limited = self.memory.time_limit is not None
        known = ["x", "elapsed_steps"] if limited else ["x"]
        unknown = sorted(physics.keys() - set(known))
        if unknown:
            raise InputError(
                f"states of {self._known.__name__} are made of {' and '.join(known)}, "
                f"not of {', '.join(unknown)}"
            )
        x = steps = None
        if "x" in physics:
            x = _finite(physics["x"], self._size)
        if "elapsed_steps" in physics:
            steps = physics["elapsed_steps"]
            whole = isinstance(steps, (int, np.integer)) and not isinstance(steps, bool)
            if not whole or not 0 <= steps < 2**63:
                raise InputError(f"elapsed_steps is a whole number of at least 0, got {steps!r}")
        if x is not None:
            memory = payload[self._packing.size - GENERATOR_NBYTES : self._packing.size].tobytes()
            self._packing.pack_into(payload.data, 0, *x, self._form.no_hidden, 0, memory)
        if steps is not None:
            payload[self._base_nbytes :][:8].view(np.int64)[0] = steps

    @property
    def _hidden(self) -> slice:
        return slice(8 * self._size, 8 * self._size + self._form.no_hidden.itemsize)

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Pack state, hidden attribute, precision and generator."""
        base, form = self.base, self._form
        state = np.asarray(base.state)
        if state.shape != (self._size,) or state.dtype.char not in "dfliq":
            raise SnapshotError(
                f"the state of {self._known.__name__} is {self._size} numbers in single or double "
                f"precision, but somebody has set it to {base.state!r}"
            )
        hidden = getattr(base, form.hidden) if form.hidden else None
        self._packing.pack_into(
            payload.data,
            0,
            *state.tolist(),
            form.no_hidden if hidden is None else hidden,
            (state.dtype.char == "f") | form.kind_of(hidden) << 1,
            save_generator(base._np_random),
        )

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Unpack what `read_base` packed; nothing of the old state stays."""
        base, form = self.base, self._form
        *x, hidden, flags, memory = self._packing.unpack_from(payload.data)
        base.state = np.array(x)
        if flags & 1:
            with np.errstate(over="ignore"):
                base.state = base.state.astype(np.float32)
        if form.hidden:
            setattr(base, form.hidden, form.as_hidden(hidden, flags >> 1))
        base._np_random = load_generator(memory, base._np_random)

    # How is it stepped

    def step(self, action: Any, dt: int) -> Outcome:
        """Step the environment itself, ended or not, without a warning.

        Raises
        ------
        StateFormatError
            The state's numbers are beyond what the environment can compute with.
        """
        with np.errstate(all="ignore"):
            reason = self._form.refusal(self.base, action)
            if reason:
                raise StateFormatError(
                    f"{self._known.__name__} cannot be stepped from the state {self.base.state}: "
                    f"{reason}; the row is damaged, or made of numbers that are far out of bounds"
                )
            if getattr(self.base, "steps_beyond_terminated", None) != 0:
                return super().step(action, dt)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _STEPPED_AGAIN)
                return super().step(action, dt)

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole blocks of rows where that is possible, else row by row."""
        self._step_blocks(rows, start, stop)

    def rollout_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole blocks of rows through all their T actions where that is possible."""
        self._step_blocks(rows, start, stop)

    def _step_blocks(self, rows: Rows, start: int, stop: int) -> None:
        stepper = self._block_stepper(rows)
        if stepper is None or stop - start < _WORTHWHILE:
            self._step_singly(rows, start, stop)
            return
        step = stepper.rollout if rows.inputs.horizon else stepper.step
        with np.errstate(all="ignore"):
            for first, last in _blocks(start, stop):
                rows.cursor[0] = first
                try:
                    step(rows, first, last)
                except NotVectorisableError:
                    self._step_singly(rows, first, last)

    def _step_singly(self, rows: Rows, start: int, stop: int) -> None:
        if rows.next_states is not None:
            states = rows.inputs.states
            heads = states if len(states) == 1 else states[start:stop]
            rows.next_states[start:stop, :HEADER_NBYTES] = heads[:, :HEADER_NBYTES]
        if rows.inputs.horizon:
            super().rollout_rows(rows, start, stop)
        else:
            super().step_rows(rows, start, stop)

    def _block_stepper(self, rows: Rows) -> BlockStepper | None:
        """Return what steps the environment as it is configured now, if anything does."""
        if not self._vectorisable or rows.columns:
            return None
        signature = self._form.signature(self.base)
        if signature is None:
            return None
        old = self._signature
        if len(signature) != len(old) or not all(map(is_, signature, old)):
            self._signature = signature
            self._steppers = {}
        kind = rows.inputs.actions.dtype.char
        if kind not in self._steppers:
            self._steppers[kind] = self._find_stepper(kind)
        return self._steppers[kind]

    def _find_stepper(self, kind: str) -> BlockStepper | None:
        """Return the stepper for actions of this type character, once it has been tried."""
        if not self._form.suits(self.base):
            return None
        form = self._form(self.base)
        if not agrees(form, self.base, kind):
            return None
        assert isinstance(self.frameskip, int)
        return BlockStepper(form, self._base_nbytes, self.memory.time_limit, self.frameskip)


class ClassicControlEnv(PlanEnv):
    """A classic control environment whose whole state can be read, set and stepped from."""

    simulator_class = ClassicControlSimulator


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, _BLOCK):
        yield first, min(first + _BLOCK, stop)


def _finite(numbers: Any, size: int) -> list[float]:
    try:
        x = np.asarray(numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"x is {size} numbers, got {numbers!r}") from error
    if x.shape != (size,) or not np.isfinite(x).all():
        raise InputError(f"x is {size} finite numbers, got {numbers!r}")
    return list(x.tolist())
