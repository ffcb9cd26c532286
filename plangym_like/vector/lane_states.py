"""State rows of lanes: checks of the rows, and the environment that steps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plangym_like.constructors import ParallelEnv
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, StateError
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.seeding import whole_seeds


def checked_states(states: Any, formats: Sequence[StateFormat], lanes: Sequence[int]) -> Row:
    """Return `states` as rows ``(K, state_nbytes)``, or one row for all ``(1, state_nbytes)``.

    Parameters
    ----------
    states : array ``(K, state_nbytes) uint8``, or one row
    formats : sequence of StateFormat
        The format of each environment, or a single one for all.
    lanes : sequence of int
        The K lanes.

    Raises
    ------
    StateError
        A row is malformed, or is not a state of its lane's environment.
    InputError
        The number of rows is neither K nor 1.
    """
    own = [formats[lane] for lane in lanes] if len(formats) > 1 else []
    kinds = set(own) or {formats[0]}
    if len(kinds) == 1:
        rows = kinds.pop().check(states)
        if len(rows) not in (1, len(lanes)):
            raise _wrong_number(len(rows), len(lanes))
        return rows
    given = list(states) if np.ndim(states[0]) else [states]
    if len(given) not in (1, len(lanes)):
        raise _wrong_number(len(given), len(lanes))
    checked: list[Row] = []
    for place, (lane, each) in enumerate(zip(lanes, own, strict=True)):
        try:
            checked.append(each.check_row(given[place] if len(given) > 1 else given[0]))
        except StateError as error:
            error.add_note(f"raised for lane {lane}, whose environment differs from others")
            raise
    return np.stack(checked)


def _wrong_number(states: int, lanes: int) -> InputError:
    return InputError(
        f"{states} states were given for {lanes} lanes: give one for each, one for all, or the "
        "indices of the lanes to set"
    )


def width_of(formats: Sequence[StateFormat], lanes: Sequence[int]) -> int:
    """Return the size in bytes of each lane's state row; see `checked_states`.

    Raises
    ------
    InputError
        The rows of these lanes have different lengths.
    """
    own = [formats[lane] for lane in lanes] if len(formats) > 1 else formats[:1]
    widths = {each.state_nbytes for each in own or formats[:1]}
    if len(widths) > 1:
        raise InputError(
            f"the state rows of these lanes have different lengths, {sorted(widths)} bytes; get "
            "rows of equal length in one call, and other rows in further calls"
        )
    return widths.pop()


def checked_reseeds(seeds: Any, count: int) -> list[int] | None:
    """Return one seed for each of `count` lanes; ``None`` if `seeds` is ``None``.

    Raises
    ------
    InputError
        There are not `count` seeds, or one is not a whole number of at least 0.
    """
    if seeds is None:
        return None
    given = [seeds] if np.ndim(seeds) == 0 else list(seeds)
    if len(given) != count or None in given:
        raise InputError(f"seeds must have one entry for each of {count} lanes, got {seeds!r}")
    return [seed for seed in whole_seeds(given) if seed is not None]


def env_of_rows(env: PlanEnv, n_workers: int) -> PlanEnv:
    """Return a new environment like `env`, to step batches of state rows.

    Parameters
    ----------
    env : PlanEnv
    n_workers : int
        How many workers the new environment has, if `env` has none and can be made again.
    """
    if n_workers > 1 and env.n_workers is None and env.recipe is not None:
        env_class, name, kwargs = env.recipe
        return ParallelEnv(env_class, name, n_workers=n_workers, **kwargs)
    return env.clone()
