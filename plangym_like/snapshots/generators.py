"""Read the states of the global random generators, and of those in an environment."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from plangym_like.snapshots.chains import links

# Attributes in which a space holds other spaces.
_NESTED = ("spaces", "feature_space", "node_space", "edge_space")


@contextlib.contextmanager
def watched_generators() -> Iterator[Callable[[], str]]:
    """Watch the global random generators during the block, and restore them at its end.

    Yield a function that returns a sentence about the generators that were used so far. What
    another thread draws during the block, it draws again afterwards.
    """
    before = global_generators()
    saved = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield lambda: draws_note(moved_generators(before))
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def global_generators() -> dict[str, Any]:
    """Return the states of the global random generators by name, as values to compare by ``==``."""
    numpys: Any = np.random.get_state(legacy=False)
    inner = [v.tobytes() if isinstance(v, np.ndarray) else v for v in numpys["state"].values()]
    return {
        "the module random": random.getstate(),
        "numpy.random": (inner, numpys.get("has_gauss"), numpys.get("gauss")),
    }


def moved_generators(before: dict[str, Any]) -> list[str]:
    """Return the names of the global random generators whose states differ from `before`."""
    return [name for name, state in global_generators().items() if state != before[name]]


def draws_note(names: Iterable[str]) -> str:
    """Return a sentence saying that the global random generators `names` were used.

    Without names, the sentence is empty.
    """
    drawn = " and of ".join(names)
    return f"It draws from the global generator of {drawn}. " if drawn else ""


def stir_global_generators() -> None:
    """Draw from the global random generators, so that later draws differ from earlier ones."""
    random.random()
    np.random.random_sample()


def own_generators(env: gymnasium.Env[Any, Any]) -> dict[str, bytes]:
    """Return the states of ``np_random`` and of the generators of all spaces of `env`, by name."""
    found: dict[str, bytes] = {}
    chain = links(env)
    base = chain[-1]
    for link in chain:
        name = type(link).__name__
        for attribute in ("action_space", "observation_space"):
            space = vars(link).get(attribute) or vars(link).get(f"_{attribute}")
            if link is base:
                # The space may be a class attribute, which all copies share.
                space = getattr(base, attribute, None)
            if isinstance(space, gymnasium.Space):
                found[f"{name}.{attribute}"] = b"".join(_space_states(space))
    found[f"{type(base).__name__}.np_random"] = _state_of(vars(base).get("_np_random"))
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
