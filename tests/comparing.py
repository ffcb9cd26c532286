"""How the tests compare: to the last bit, through every nest."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from plangym_like import BatchInfo


def content(value: Any) -> bytes:
    """Return bytes that differ if `value` does, in any bit, type, dtype or shape."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object:
            return b"O" + repr(value.shape).encode() + content(value.tolist())
        return repr((type(value).__name__, value.dtype, value.shape)).encode() + value.tobytes()
    if isinstance(value, dict):
        parts = [repr(key).encode() + content(value[key]) for key in sorted(value, key=str)]
    elif isinstance(value, BatchInfo):
        parts = [content(row) for row in value]
    elif isinstance(value, tuple | list):
        parts = [content(item) for item in value]
    else:
        return f"{type(value).__name__}:{value!r}".encode()
    return b"%d[" % len(parts) + b",".join(parts) + b"]"


def assert_same(one: Any, other: Any, what: str = "it") -> None:
    """Fail unless both are the same; says where they differ."""
    if content(one) == content(other):
        return
    if hasattr(one, "_fields") and hasattr(other, "_fields"):
        assert one._fields == other._fields, what
        for name in one._fields:
            assert_same(getattr(one, name), getattr(other, name), f"{what}.{name}")
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        np.testing.assert_array_equal(one, other, what, strict=True)
    raise AssertionError(f"{what} differs: {one!r} and {other!r}")


def row(result: Any, index: int) -> tuple[Any, ...]:
    """Return row `index` of a batch's result, every part of it."""
    return tuple(_take(part, index) for part in result if part is not None)


def _take(batch: Any, index: int) -> Any:
    if isinstance(batch, dict):
        return {key: _take(inner, index) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_take(inner, index) for inner in batch)
    return batch[index]


def sampler(env: Any, seed: int) -> Any:
    """Return a copy of the space of actions that raise nothing; it draws from `seed`."""
    space = copy.deepcopy(getattr(env, "harmless", env.action_space))
    space.seed(seed)
    return space


def reached(env: Any, count: int, seed: int = 0, every: int = 1, repeat: float = 0.0) -> np.ndarray:
    """Return states ``(count, state_nbytes)`` that random play reaches, starting anew when it ends.

    A state is taken every so many steps; `repeat` is the chance that an action is held on.
    """
    rng = np.random.default_rng(seed)
    space = sampler(env, seed)
    state = env.reset(seed=seed).state
    action = space.sample()
    states = []
    while len(states) < count:
        states.append(state)
        for _ in range(every):
            if rng.random() >= repeat:
                action = space.sample()
            step = env.step(action, return_state=True)
            state = step.state
            if step.terminated or step.truncated:
                state = env.reset(seed=int(rng.integers(1000))).state
                break
    return np.stack(states)
