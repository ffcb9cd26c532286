"""Kernels: tested before they are used, and the quick step of one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import assert_same

import plangym_like
from plangym_like.envs.classic.env import agrees
from plangym_like.envs.classic.equations import CartPole
from plangym_like.envs.kernel import Kernel

CHANGES = [
    {},
    {"gravity": 3.0},
    {"kinematics_integrator": "semi-implicit"},
    {"_sutton_barto_reward": True},
    {"theta_threshold_radians": 0.05},
]


def cart_poles(**kwargs: Any) -> tuple[Any, Any]:
    """Return two of them; the second has no quick step."""
    quick, slow = (
        plangym_like.make("CartPole-v1", autoreset=False, audit="off", **kwargs) for _ in range(2)
    )
    slow.simulator.step_row = lambda *args: None
    return quick, slow


@pytest.mark.parametrize(("changes", "limit"), [(each, 15) for each in CHANGES] + [({}, None)])
def test_the_quick_step_of_one_row_is_the_environments(changes: Any, limit: int | None) -> None:
    quick, slow = cart_poles(max_episode_steps=limit)
    for env in (quick, slow):
        for name, value in changes.items():
            setattr(env.simulator.base, name, value)
    rng = np.random.default_rng(3)
    state = quick.reset(seed=3).state
    assert quick.simulator.step_row(state, np.int64(1), 1) is not None
    for _ in range(20):
        action = rng.integers(2)
        one, other = quick.step(action, state), slow.step(action, state)
        assert_same(tuple(one), tuple(other))
        assert_same(quick.get_state(), one.state)
        state = one.state


def test_a_quick_step_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance_one = CartPole.advance_one

    def off(self: Any, *args: Any) -> Any:
        x, *rest = advance_one(self, *args)
        return (x[0], x[1], x[2], np.nextafter(x[3], 9.0)), *rest

    monkeypatch.setattr(CartPole, "advance_one", off)
    quick, slow = cart_poles()
    assert not agrees(quick.simulator.base)
    state = quick.reset(seed=6).state
    assert_same(tuple(quick.step(0, state)), tuple(slow.step(0, state)))


def test_a_kernel_is_tested_once_before_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = []
    disagreement = Kernel.disagreement

    def counted(self: Any, *args: Any) -> str:
        tested.append(self)
        return disagreement(self, *args)

    monkeypatch.setattr(Kernel, "disagreement", counted)
    with plangym_like.make("CartPole-v1", audit="off") as env:
        state = env.reset(seed=0).state
        assert tested == []
        for _ in range(2):
            env.step_batch([0, 1], state)
        assert len(tested) == 1


def test_a_disagreement_says_where() -> None:
    sim = plangym_like.make("CartPole-v1").simulator
    kernel = sim.make_kernel("l")
    assert kernel is not None and kernel.disagreement(sim, "l") == ""
    frame = kernel.frame

    def late(states: Any, actions: Any, out: Any) -> None:
        frame(states, actions, out)
        out.truncated[5] = True

    kernel.frame = late
    assert kernel.disagreement(sim, "l").startswith("the truncated of row 5 is ")
