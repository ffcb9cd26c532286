"""The numbers and text of an environment that it sets itself, in resets and steps.

Other numbers and text are its settings. A wrapper may change them, and they keep their values in
the next episode.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

from plangym_like.snapshots.chains import ATOMS, CONSTANT

# After so many steps, it is known which attributes an environment sets itself.
_PLAYED = 12


def own_names(used: Any, new: dict[str, Any] | None = None) -> frozenset[str]:
    """Return the names of the attributes with numbers or text that an environment sets itself.

    Parameters
    ----------
    used : gymnasium.Env
        The environment without wrappers. It is reset, and takes a dozen steps.
    new : dict, optional
        What `atoms_of` returned for a new environment, by default for `used`. An attribute that
        differs from it, such as the number of a connection, is counted too.
    """
    before = atoms_of(used) if new is None else new
    actions = copy.deepcopy(used.action_space)
    actions.seed(0)
    with contextlib.suppress(Exception):
        used.reset(seed=0)
        for _ in range(_PLAYED):
            if any(used.step(actions.sample())[2:4]):
                break
    after = atoms_of(used)
    names = {**before, **after}
    return frozenset(name for name in names if not is_same(before.get(name), after.get(name)))


def atoms_of(env: Any) -> dict[str, Any]:
    """Return the numbers and text in attributes of `env`, by name."""
    return {k: value for k, value in vars(env).items() if k not in CONSTANT and _is_atom(value)}


def _is_atom(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_atom, value))
    return isinstance(value, ATOMS) and not isinstance(value, bytearray)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two numbers or texts are the same."""
    return type(one) is type(other) and bool(one == other)
