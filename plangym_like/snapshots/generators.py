"""Random generators that no state row holds: the global ones, and those of spaces."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

# Attributes in which a space holds others.
_NESTED = ("spaces", "feature_space", "node_space", "edge_space")


@contextlib.contextmanager
def watched_generators() -> Iterator[Callable[[], str]]:
    """Restore the global generators at the end.

    Yields a function that returns a sentence about those that have been drawn from until then.
    """
    before = global_generators()
    saved = random.getstate(), np.random.get_state(legacy=False)

    try:
        yield lambda: told_draws(moved_generators(before))
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def global_generators() -> dict[str, Any]:
    """Return the states of the global generators, by name; they can be compared by ``==``."""
    numpys: Any = np.random.get_state(legacy=False)
    inner = [v.tobytes() if isinstance(v, np.ndarray) else v for v in numpys["state"].values()]
    return {
        "the module random": random.getstate(),
        "numpy.random": (inner, numpys.get("has_gauss"), numpys.get("gauss")),
    }


def moved_generators(before: dict[str, Any]) -> list[str]:
    """Return the names of the global generators that are not in the state `before` any more."""
    return [name for name, state in global_generators().items() if state != before[name]]


def told_draws(names: Iterable[str]) -> str:
    """Return a sentence that says from which global generators was drawn; empty if from none."""
    drawn = " and of ".join(names)
    return f"It draws from the global generator of {drawn}. " if drawn else ""


def stir_global_generators() -> None:
    """Draw from the global generators, so that what depends on them is different from now on."""
    random.random()
    np.random.random_sample()


def own_generators(env: gymnasium.Env[Any, Any]) -> dict[str, bytes]:
    """Return the states of the generators of a chain: the environment's own, and its spaces'."""
    found: dict[str, bytes] = {}
    link: Any = env
    while True:
        name = type(link).__name__
        for attribute in ("action_space", "observation_space"):
            space = vars(link).get(attribute) or vars(link).get(f"_{attribute}")
            if isinstance(space, gymnasium.Space):
                found[f"{name}.{attribute}"] = b"".join(_space_states(space))
        if not isinstance(link, gymnasium.Wrapper):
            break
        link = link.env
    # Class attributes count too: several copies share such a space.
    for attribute in ("action_space", "observation_space"):
        space = getattr(link, attribute, None)
        if isinstance(space, gymnasium.Space):
            found[f"{name}.{attribute}"] = b"".join(_space_states(space))
    found[f"{name}.np_random"] = _state_of(vars(link).get("_np_random"))
    return found


def _space_states(space: gymnasium.Space[Any]) -> Iterator[bytes]:
    yield _state_of(vars(space).get("_np_random"))
    for attribute in _NESTED:
        inner = vars(space).get(attribute)
        parts = inner.values() if isinstance(inner, dict) else inner
        for part in parts if isinstance(parts, Iterable) else (parts,):
            if isinstance(part, gymnasium.Space):
                yield from _space_states(part)


def _state_of(generator: Any) -> bytes:
    if not isinstance(generator, np.random.Generator):
        return b"none"
    return pickle.dumps(generator.bit_generator.state)
