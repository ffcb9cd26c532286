from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: pip install 'plangym_like[jax]'")
pytest.importorskip("flax", reason="Gymnasium's environments on JAX need flax")
pytest.importorskip("array_api_compat", reason="JaxToNumpy needs array-api-compat")

import jax
from comparing import assert_same
from continuation import assert_equals_gymnasium, assert_goes_on
from gymnasium.wrappers import JaxToNumpy

import plangym_like
from plangym_like.envs.functional import FunctionalJaxSimulator

IDS = [
    "phys2d/CartPole-v1",
    "phys2d/Pendulum-v0",
    "tabular/Blackjack-v0",
    "tabular/CliffWalking-v0",
]


class NumpySimulator(FunctionalJaxSimulator):
    """Shows arrays of NumPy, which can be compared."""

    def observe(self, obs: Any) -> Any:
        return np.asarray(obs)


@pytest.mark.parametrize("name", IDS)
def test_goes_on_and_equals_gymnasium(name: str) -> None:
    sim = NumpySimulator(name)
    assert sim.exactness == "exact"
    for seed in range(3):
        assert_goes_on(sim, seed=seed, steps=12)
    assert_equals_gymnasium(sim, lambda: JaxToNumpy(gymnasium.make(name)), seed=3, steps=40)


@pytest.mark.parametrize("name", IDS)
def test_leaves_stay_the_kinds_of_numbers_that_they_were(name: str) -> None:
    with plangym_like.make(name, autoreset=False) as env:
        assert env.snapshot == "native"
        base = env.simulator.base
        state = env.reset(seed=5).state
        kinds = set()
        for _ in range(3):
            before = [leaf.aval for leaf in jax.tree_util.tree_leaves((base.state, base.rng))]
            kinds |= {aval.weak_type for aval in before}
            env.reset(seed=6)
            env.set_state(state)
            after = [leaf.aval for leaf in jax.tree_util.tree_leaves((base.state, base.rng))]
            assert before == after
            state = env.step(env.action_space.sample(), return_state=True).state
    assert kinds == ({False, True} if name.startswith("tabular") else {False})


def test_batches_and_seeds() -> None:
    with plangym_like.make("tabular/Blackjack-v0") as env:
        state = env.reset(seed=0).state
        one = env.step_batch(np.ones(6, int), state, seeds=[1, 1, 2, 3, 4, 5])
        two = env.step_batch(np.ones(6, int), state, seeds=[1, 1, 2, 3, 4, 5])
        assert_same(one.states, two.states)
        assert_same(one.states[0], one.states[1])
        # The player's hand has another card.
        assert len({obs.tobytes() for obs in one.obs}) > 1
        same = env.step_batch(np.ones(3, int), state)
        assert_same(same.states[0], same.states[2])
