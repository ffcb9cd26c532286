"""`as_count`: check options that are whole numbers."""

from __future__ import annotations

import operator
from typing import Any

from plangym_like.errors import InputError


def as_count(name: str, number: Any, least: int = 1) -> int:
    """Return `number` as an int of at least `least`.

    Raises
    ------
    InputError
        It is not a whole number, or less than `least`; the message calls it `name`.

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
