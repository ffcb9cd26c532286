"""The memory of generators: as bytes, and copied in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from plangym_like.states import random_state
from plangym_like.states.random_state import GeneratorMemory, save_generator


@pytest.fixture(params=[True, False])
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An environment, with NumPy's memory layout known and unknown."""
    monkeypatch.setattr(random_state, "_layout_is_known", lambda: request.param)
    return CartPoleEnv()


def test_this_numpys_layout_is_known() -> None:
    assert random_state._layout_is_known()


def test_what_is_saved_goes_on_where_it_was(env: Any) -> None:
    memory, payload = GeneratorMemory(env), np.full(56, 7, np.uint8)
    env.reset(seed=3)
    env.np_random.integers(5, dtype=np.uint32)
    memory.save(payload, 8)
    assert payload[8:48].tobytes() == save_generator(env.np_random)
    assert (payload[:8] == 7).all() and (payload[48:] == 7).all()
    numbers = env.np_random.integers(2**32, size=9, dtype=np.uint32).tolist()
    for _ in range(2):
        memory.load(payload, 8)
        assert env.np_random.integers(2**32, size=9, dtype=np.uint32).tolist() == numbers
    env.reset(seed=4)
    memory.load(payload, 8)
    assert save_generator(env.np_random) == payload[8:48].tobytes()


def test_no_generator_is_zeros(env: Any) -> None:
    memory, payload = GeneratorMemory(env), np.ones(40, np.uint8)
    assert env._np_random is None
    memory.save(payload, 0)
    assert not payload.any()
    env.reset(seed=0)
    memory.load(payload, 0)
    assert env._np_random is None
    payload[:] = np.frombuffer(save_generator(np.random.default_rng(5)), np.uint8)
    memory.load(payload, 0)
    assert env.np_random.random() == np.random.default_rng(5).random()


def test_nothing_is_read_from_a_numpy_whose_layout_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(np, "__version__", "3.0.0")
    monkeypatch.setattr(random_state, "_memory_of", read.append)
    assert not random_state._layout_is_known.__wrapped__()
    assert not read
