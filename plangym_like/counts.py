"""`as_count`, `as_number` and `check_seconds`: check options that are numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

from plangym_like.errors import InputError


def as_count(name: str, number: Any, least: int = 1) -> int:
    """Return `number` as an int of at least `least`.

    Raises
    ------
    InputError
        `number` is not a whole number, or is less than `least`; the message calls it `name`.

    Examples
    --------
    >>> import numpy as np
    >>> as_count("n_workers", np.int64(2))
    2
    """
    try:
        whole = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        whole = -1
    if whole < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {number!r}")
    return whole


def as_number(name: str, number: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `number` as a finite float from `least` to `most`.

    Raises
    ------
    InputError
        `number` is not a finite number, or is out of range; the message calls it `name`.

    Examples
    --------
    >>> as_number("discount", 1, 0.0, 1.0)
    1.0
    """
    try:
        value = float(number)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
        raise InputError(f"{name} must be a finite number {limits}, got {number!r}")
    return value


def check_seconds(name: str, seconds: Any) -> None:
    """Raise InputError unless `seconds` is a number greater than 0.

    Examples
    --------
    >>> check_seconds("step_timeout", "5")
    Traceback (most recent call last):
        ...
    plangym_like.errors.InputError: step_timeout must be a number of seconds above 0, got '5'
    """
    try:
        is_time = bool(seconds > 0) and float(seconds) > 0
    except (TypeError, ValueError, OverflowError):
        is_time = False
    if not is_time:
        raise InputError(f"{name} must be a number of seconds above 0, got {seconds!r}")
