"""Gymnasium's classic control: CartPole, MountainCar, MountainCarContinuous, Pendulum, Acrobot.

Payload of a row::

    float64 * size   the physical state, ``env.state``
    4 bytes          what is beside it: CartPole's steps_beyond_terminated (int32, -1 for None),
                     Pendulum's last_u (float32, NaN for None), nothing elsewhere
    int32            1 where ``env.state`` is single precision, else 0
    40 bytes         the random generator
    ...              the wrappers' memory

Where nothing but a time limit is wrapped around the environment, and `classic_dynamics` covers its
configuration, whole chunks of rows are stepped at once; else row by row. The results are the same.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping
from operator import attrgetter, is_
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batches import Inputs, Rows
from plangym_like.envs.classic_dynamics import (
    FORMS,
    Columns,
    Dynamics,
    NotVectorisableError,
    Survivors,
    agrees,
)
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import InputError, SnapshotError, StateFormatError
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import (
    GENERATOR_NBYTES,
    load_generator,
    save_generator,
    seeded_generator,
)
from plangym_like.simulator import Outcome
from plangym_like.states import HEADER_NBYTES, Row

# Rows that are stepped at once: few enough for their columns to stay in the nearest cache.
_BLOCK = 2048
_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
_STEPPED_AGAIN = r".*You are calling 'step\(\)' even though"


class ClassicControlSimulator(GymnasiumSimulator):
    """One of the five environments, or a subclass of one.

    `fields` and `make_state` know ``x``, the physical state ``(size,) float64``, and, where there is
    such a thing, ``steps_beyond_terminated``, ``last_u`` and ``elapsed_steps``.
    """

    family = "CLAS"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._form: type[Dynamics]
        self._dynamics: Dynamics | None = None
        self._signature: tuple[Any, ...] = ()
        self._x = np.empty((0, 0))
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
        form = self._form = FORMS[known[0]]
        self._known = known[0]
        self._size = size = len(form.order)
        hidden = form.no_hidden.dtype.char
        self._layout = struct.Struct(f"={size}d{hidden}i{GENERATOR_NBYTES}s")
        super().prepare()

    def _note_inexactness(self) -> None:
        if type(self.base) is self._known:
            return
        own = vars(self.base).keys() - vars(self._known()).keys() - {"last_u", "spec", "surf"}
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
        return self._layout.size

    def meaning(self) -> Mapping[str, Any]:
        """Add the class and the constants of the dynamics."""
        signature = self._form.signature(self.base)
        return {
            **super().meaning(),
            "class": f"{type(self.base).__module__}.{type(self.base).__qualname__}",
            "constants": [repr(value) for value in signature or ()],
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``x`` ``(N, size)`` and what else a row holds, each ``(N,)``; -1 or NaN for None."""
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
            memory = payload[self._layout.size - GENERATOR_NBYTES : self._layout.size].tobytes()
            self._layout.pack_into(payload, 0, *x, self._form.no_hidden, 0, memory)
        if steps is not None:
            payload[self._base_nbytes :][:8].view(np.int64)[0] = steps

    @property
    def _hidden(self) -> slice:
        return slice(8 * self._size, 8 * self._size + 4)

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
        self._layout.pack_into(
            payload,
            0,
            *state.tolist(),
            form.no_hidden if hidden is None else hidden,
            state.dtype.char == "f",
            save_generator(base._np_random),
        )

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Unpack what `read_base` packed; nothing of the old state stays."""
        base, form = self.base, self._form
        *x, hidden, single, memory = self._layout.unpack_from(payload)
        base.state = np.array(x, np.float32 if single else np.float64)
        if form.hidden:
            value = form.no_hidden.dtype.type(hidden)
            absent = value == form.no_hidden or value != value
            setattr(base, form.hidden, None if absent else value if hidden.__class__ is float else hidden)
        base._np_random = load_generator(memory, base._np_random)

    # How is it stepped

    def step(self, action: Any, dt: int) -> Outcome:
        """Step the environment itself, ended or not, without a warning.

        Raises
        ------
        StateFormatError
            The state's numbers are beyond what the environment can compute with.
        """
        reason = self._form.refusal(self.base, action)
        if reason:
            raise StateFormatError(
                f"{self._known.__name__} cannot be stepped from the state {self.base.state}: "
                f"{reason}; the row is damaged, or was made of numbers that are far out of bounds"
            )
        with np.errstate(all="ignore"):
            if getattr(self.base, "steps_beyond_terminated", None) != 0:
                return super().step(action, dt)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _STEPPED_AGAIN)
                return super().step(action, dt)

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole chunks where that is possible, else row by row."""
        self._by_blocks(rows, start, stop, self._step_block, super().step_rows)

    def rollout_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole chunks through all their T actions where that is possible."""
        self._by_blocks(rows, start, stop, self._rollout_block, super().rollout_rows)

    def _by_blocks(
        self,
        rows: Rows,
        start: int,
        stop: int,
        step_block: Callable[[Dynamics, Rows, int, int], None],
        step_singly: Callable[[Rows, int, int], None],
    ) -> None:
        form = self._current_form()
        if form is None or rows.columns:
            return step_singly(rows, start, stop)
        with np.errstate(all="ignore"):
            for first in range(start, stop, _BLOCK):
                last = min(first + _BLOCK, stop)
                rows.cursor[0] = first
                try:
                    step_block(form, rows, first, last)
                except NotVectorisableError:
                    step_singly(rows, first, last)

    def _current_form(self) -> Dynamics | None:
        """Return the array form of the environment as it is now, or ``None`` if there is none."""
        if not self._vectorisable:
            return None
        signature = self._form.signature(self.base)
        if signature is None:
            return None
        old = self._signature
        if len(signature) != len(old) or not all(map(is_, signature, old)):
            self._signature, self._dynamics = signature, None
            if self._form.suits(self.base):
                form = self._form(self.base)
                if agrees(form, self.base):
                    self._dynamics = form
        return self._dynamics

    def _step_block(self, form: Dynamics, rows: Rows, first: int, last: int) -> None:
        block = slice(first, last)
        columns = self._load(form, rows, block)
        self._hold(
            form,
            columns,
            rows.inputs.actions[block],
            self._frames(rows.inputs, block),
            rows.rewards[block],
            rows.terminateds[block],
            rows.truncateds[block],
            rows.n_step[block],
        )
        if rows.observations is not None:
            form.observe(columns.x, rows.observations[block])
        self._store(form, columns, rows, block)

    def _rollout_block(self, form: Dynamics, rows: Rows, first: int, last: int) -> None:
        block, count = slice(first, last), last - first
        columns = self._load(form, rows, block)
        frames = self._frames(rows.inputs, block)
        going = Survivors(columns)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        n_step = np.zeros(count, np.int64)
        for time in range(rows.inputs.horizon):
            rewards = np.zeros(count)
            if len(going):
                at, length = going.rows, len(going)
                results = (
                    np.empty(length),
                    np.empty(length, bool),
                    np.empty(length, bool),
                    np.empty(length, np.int64),
                )
                self._hold(
                    form,
                    going.part,
                    np.ascontiguousarray(rows.inputs.actions[block, time][at]),
                    frames if isinstance(frames, int) else frames[at],
                    *results,
                )
                rewards[at], terminated[at], truncated[at] = results[:3]
                n_step[at] += results[3]
                going.keep(~(results[1] | results[2]))
            rows.rewards[block, time] = rewards
            rows.terminateds[block, time] = terminated
            rows.truncateds[block, time] = truncated
            if rows.observations is not None:
                going.write_back()
                form.observe(columns.x, rows.observations[block, time])
        going.write_back()
        rows.n_step[block] = n_step
        self._store(form, columns, rows, block)

    def _hold(
        self,
        form: Dynamics,
        columns: Columns,
        actions: NDArray[Any],
        frames: int | NDArray[np.int64],
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        n_step: NDArray[np.int64],
    ) -> None:
        """Step each row for its `frames`, or until it ends; fill the results, all ``(N,)``."""
        if isinstance(frames, int) and frames == 1:
            form.advance(columns, actions, rewards, terminated)
            self._count(columns, truncated)
            n_step.fill(1)
            return
        for array in (rewards, terminated, truncated, n_step):
            array.fill(0)
        going = Survivors(columns)
        frame = 0
        while len(going):
            at, part = going.rows, going.part
            reward, ended, late = np.empty(len(going)), *np.empty((2, len(going)), bool)
            form.advance(part, actions[at], reward, ended)
            self._count(part, late)
            if part.single is not None:
                part.single.fill(form.leaves_single)
            rewards[at] += reward
            terminated[at], truncated[at] = ended, late
            n_step[at] += 1
            frame += 1
            wanted = frames if isinstance(frames, int) else frames[at]
            going.keep(~(ended | late) & (wanted > frame))
        going.write_back()

    def _count(self, columns: Columns, truncated: NDArray[np.bool_]) -> None:
        """Count a step for the time limit, where one is kept."""
        if columns.elapsed is None:
            truncated.fill(False)
            return
        limit: Any = self.memory.time_limit
        columns.elapsed += 1
        np.greater_equal(columns.elapsed, limit._max_episode_steps, out=truncated)

    def _frames(self, inputs: Inputs, block: slice) -> int | NDArray[np.int64]:
        assert isinstance(self.frameskip, int)
        if isinstance(inputs.dt, int):
            return inputs.dt * self.frameskip
        return inputs.dt[block] * self.frameskip
