"""`Dynamics`: the base class for the vectorised step of a classic control environment."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.kernel import NotVectorisableError, States

Array = NDArray[Any]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Columns(States):
    """The states of N rows.

    ``x`` ``(size, N)`` is the physical state, and ``hidden`` ``(N,)`` is `Dynamics.hidden`.
    ``single`` ``(N,) bool`` marks the rows that the environment would store in ``float32``
    (``None`` means no row). ``elapsed`` ``(N,) int64`` counts the steps for a time limit.
    """

    x: Floats
    hidden: NDArray[Any]
    single: NDArray[np.bool_] | None = None
    elapsed: NDArray[np.int64] | None = None


class Dynamics(abc.ABC):
    """The vectorised step of one environment, for N rows, with its current constants.

    Attributes
    ----------
    order : tuple of int
        Row k of ``Columns.x`` is ``env.state[order[k]]``.
    constants : tuple of str
        Attributes of the environment that its step reads.
    methods : tuple of str
        Methods of the environment that its step calls.
    num_actions : int
        The number of discrete actions; 0 if the space is a ``float32`` box of shape ``(1,)``, whose
        actions may have any dtype.
    hidden : str
        The attribute, other than ``state``, that affects later steps or images; "" if none does.
    no_hidden : numpy.int32 or numpy.float64
        The value in ``Columns.hidden`` that means ``None``. The array has the dtype of this value.
    takes_single, leaves_single : bool
        Whether `advance` can step ``float32`` states, and whether its next states are ``float32``.
    most_singly : int
        The number of rows up to which `advance_one` is faster than `advance`; 0 if there is only
        `advance` (measured by `benchmarks/vector.py`).
    sample_range : tuple of float
        For each number of the state, the largest absolute value that trials use.
    """

    order: ClassVar[tuple[int, ...]]
    constants: ClassVar[tuple[str, ...]]
    methods: ClassVar[tuple[str, ...]] = ()
    num_actions: ClassVar[int]
    hidden: ClassVar[str] = ""
    no_hidden: ClassVar[np.int32 | np.float64] = np.int32(-1)
    takes_single: ClassVar[bool] = False
    leaves_single: ClassVar[bool] = False
    most_singly: ClassVar[int] = 0
    sample_range: ClassVar[tuple[float, ...]]

    def __init__(self, env: Any) -> None:
        values = attrgetter(*self.constants)(env)
        self.values: Any = SimpleNamespace(**dict(zip(self.constants, values, strict=True)))

    @classmethod
    def signature(cls, env: Any) -> tuple[Any, ...] | None:
        """Return all constants that steps depend on; ``None`` if a method of `env` was replaced."""
        if not vars(env).keys().isdisjoint(("step", *cls.methods)):
            return None
        values: tuple[Any, ...] = attrgetter(*cls.constants)(env)
        return values

    @classmethod
    def suits(cls, env: Any) -> bool:
        """Return whether these dynamics describe `env` in its current configuration."""
        signature, space = cls.signature(env), env.action_space
        if signature is None or not {*map(type, signature)} <= {int, float, bool, str}:
            return False
        if cls.num_actions:
            return bool(getattr(space, "n", 0) == cls.num_actions and space.start == 0)
        return bool(space.shape == (1,) and space.dtype == np.float32)

    @classmethod
    def as_hidden(cls, number: Any) -> Any:
        """Return the value of the hidden attribute that was saved as `number`."""
        return None if number == -1 else int(number)

    @staticmethod
    def unsupported_reason(env: Any, action: Any) -> str:
        """Return why `env` itself cannot take `action` in its current state, or "" if it can."""
        return ""

    def load(self, states: Floats, x: Floats) -> None:
        """Fill `x` ``(size, N)`` from `states` ``(N or 1, size)``."""
        for row, column in enumerate(self.order):
            x[row] = states[:, column]

    def store(self, x: Floats, states: Floats) -> None:
        """Fill `states` ``(N, size)`` from `x`: the inverse of `load`."""
        for row, column in enumerate(self.order):
            states[:, column] = x[row]

    @abc.abstractmethod
    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        """Step `columns` in place with N `actions`; fill `rewards` and `terminated` ``(N,)``.

        ``columns.single`` and ``columns.elapsed`` stay as they are.

        Raises
        ------
        NotVectorisableError
            A row must be stepped by the environment itself; `columns` is in an undefined state.
        """

    def advance_one(
        self, x: Sequence[float], hidden: Any, action: Any
    ) -> tuple[Sequence[float], Any, float, bool] | None:
        """Step one state, given as Python numbers; faster than `advance` for a few rows.

        Return the next `x` and `hidden`, the reward and the terminated flag, or ``None`` if this
        method cannot step the state. `x` is in the order of ``env.state``.
        """
        return None

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        """Fill `out` ``(N, *obs_shape)`` with the observations; by default, these are the states.

        `x` ``(size, N)`` and `states` ``(N, size)`` hold the same numbers: `store` has filled
        `states` from `x`.
        """
        out[:] = states


@functools.cache
def elementary_functions_agree() -> bool:
    """Return whether sine, cosine and square are the same for arrays as for single numbers.

    The vectorised dynamics depend on this. It may not hold on every processor, or in every version
    of NumPy.
    """
    numbers = np.random.Generator(np.random.PCG64(5)).normal(0, 3, 4096)
    pairs = (
        (np.cos(numbers), [math.cos(x) for x in numbers.tolist()]),
        (np.cos(numbers), [np.cos(x) for x in numbers]),
        (np.sin(numbers), [math.sin(x) for x in numbers.tolist()]),
        (np.sin(numbers), [np.sin(x) for x in numbers]),
        (np.float_power(numbers, 2.0), [x**2 for x in numbers]),
    )
    return all(array.tolist() == singles for array, singles in pairs)


def cosine(angles: Floats) -> Floats:
    """Return ``math.cos`` of each angle; raise `NotVectorisableError` if one is not finite."""
    cosines: Floats = np.cos(angles)
    if np.isnan(cosines).any():
        raise NotVectorisableError
    return cosines
