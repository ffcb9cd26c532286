"""`Dynamics`: the base of the vectorised steps of the five environments."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.classic_dynamics.columns import Array, Columns, Flags, Floats
from plangym_like.envs.fast_form import NotVectorisableError


class Dynamics(abc.ABC):
    """The step of one environment, with its current constants, over N rows.

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
        The attribute, other than ``state``, on which later steps or images depend; "" for none.
    no_hidden : numpy.int32 or numpy.float64
        The value of ``Columns.hidden`` that means ``None``, in its dtype.
    hidden_kinds : str
        Type characters of all dtypes that the attribute may have; "" if there is only one.
    hidden_kind : int
        The index in `hidden_kinds` of the attribute's dtype after `advance`.
    takes_single, leaves_single : bool
        Whether ``float32`` states can be stepped here, and whether a step leads to such states.
    most_singly : int
        The number of rows up to which `advance_one` is faster than `advance`; 0 if there is only
        `advance` (measured by `benchmarks/vector.py`).
    sample_range : tuple of float
        The largest absolute values of the state's numbers in trials.
    """

    order: ClassVar[tuple[int, ...]]
    constants: ClassVar[tuple[str, ...]]
    methods: ClassVar[tuple[str, ...]] = ()
    num_actions: ClassVar[int]
    hidden: ClassVar[str] = ""
    no_hidden: ClassVar[np.int32 | np.float64] = np.int32(-1)
    hidden_kinds: ClassVar[str] = ""
    hidden_kind: int = 0
    takes_single: ClassVar[bool] = False
    leaves_single: ClassVar[bool] = False
    most_singly: ClassVar[int] = 0
    sample_range: ClassVar[tuple[float, ...]]

    def __init__(self, env: Any) -> None:
        values = attrgetter(*self.constants)(env)
        self.values: Any = SimpleNamespace(**dict(zip(self.constants, values, strict=True)))

    @classmethod
    def signature(cls, env: Any) -> tuple[Any, ...] | None:
        """Return all constants that steps depend on; ``None`` if methods were replaced."""
        if not vars(env).keys().isdisjoint(("step", *cls.methods)):
            return None
        values: tuple[Any, ...] = attrgetter(*cls.constants)(env)
        return values

    @classmethod
    def suits(cls, env: Any) -> bool:
        """Return whether these dynamics describe `env` in its current configuration."""
        signature, space = cls.signature(env), env.action_space
        if signature is None or any(type(x) not in (int, float, bool, str) for x in signature):
            return False
        if cls.num_actions:
            return bool(getattr(space, "n", 0) == cls.num_actions and space.start == 0)
        return bool(space.shape == (1,) and space.dtype == np.float32)

    @classmethod
    def as_hidden(cls, number: Any, kind: int = 0) -> Any:
        """Return the attribute's value (see `hidden`) for a saved number and kind."""
        return None if number == -1 else number

    @classmethod
    def kind_of(cls, hidden: Any) -> int:
        """Return the index in `hidden_kinds` of the type of `hidden`, a number or an array."""
        if not cls.hidden_kinds or hidden is None:
            return 0
        kind = np.asarray(hidden).dtype.char
        return cls.hidden_kinds.find(kind if kind in cls.hidden_kinds else "d")

    @staticmethod
    def unsupported_reason(env: Any, action: Any) -> str:
        """Return why `env` itself cannot step from its current state; an empty string if it can."""
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
        """Step one state, and return the next `x` and `hidden`, the reward, and terminated.

        `x` is in the order of ``env.state``. Return ``None`` if the step needs arrays.
        """
        return None

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        """Fill `out` ``(N, *obs_shape)`` with the observations; by default these are the states.

        ``x`` ``(size, N)`` are the columns. ``states`` ``(N, size)`` was filled from them by
        `store`.
        """
        out[:] = states


def cosine(angles: Floats) -> Floats:
    """Return ``math.cos`` of each angle; raise `NotVectorisableError` if one is not finite."""
    cosines: Floats = np.cos(angles)
    if np.isnan(cosines).any():
        raise NotVectorisableError
    return cosines
