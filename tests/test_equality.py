"""The same bytes: for any number of workers, any order, any split.

Ten thousand transitions for each environment with ``pytest -m full``, 150 without.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import digests, reached, sampler
from conftest import sending
from usual import first_of

import plangym_like

SUITE: dict[str, tuple[str, dict[str, Any]]] = {
    "MsPacman": ("ALE/MsPacman-v5", {"obs_type": "rgb", "frameskip": 1}),
    "CartPole": ("CartPole-v1", {}),
    "Qbert": ("ALE/Qbert-v5", {"obs_type": "grayscale", "frameskip": 1}),
    "Tetris": ("ALE/Tetris-v5", {"obs_type": "grayscale"}),
    "YarsRevenge": ("ALE/YarsRevenge-v5", {"obs_type": "grayscale", "frameskip": 3}),
    "StickyBreakout": (
        "ALE/Breakout-v5",
        {"obs_type": "ram", "frameskip": (2, 5), "repeat_action_probability": 0.25},
    ),
}
if importlib.util.find_spec("mujoco"):
    SUITE["Ant"] = ("Ant-v5", {})
if importlib.util.find_spec("dm_control"):
    SUITE["walker-walk"] = ("walker-walk", {})
CHUNK = 100


class Transitions:
    """Random transitions from reached states, and a digest of what each leads to."""

    def __init__(self, env: Any, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pool = reached(env, count // 2, seed=seed, every=7, repeat=0.7)
        self.states = pool[rng.integers(0, len(pool), count)]
        space = sampler(env, seed)
        self.actions = np.array([space.sample() for _ in range(count)])
        self.dt = rng.integers(1, 4, count)
        self.digests: list[bytes] = []
        for start in range(0, count, CHUNK):
            rows = np.arange(start, min(start + CHUNK, count))
            self.digests += digests(self.step(env, rows))

    def step(self, env: Any, rows: Any) -> Any:
        return env.step_batch(self.actions[rows], self.states[rows], dt=self.dt[rows])

    def check(self, env: Any, seed: int) -> None:
        """Step all of them in another order, cut into batches of any size."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.states))
        while len(order):
            size = int(rng.choice([1, 2, 3, 5, 17, 64, CHUNK]))
            rows, order = order[:size], order[size:]
            for row, digest in zip(rows, digests(self.step(env, rows)), strict=True):
                assert digest == self.digests[row], f"row {row} of {len(self.states)}"


def workers(name: str, kwargs: dict[str, Any]) -> Iterator[Any]:
    for n_workers in (None, 2, 3):
        env = sending(plangym_like.make(name, n_workers=n_workers, **kwargs))
        yield env
        env.close()


def check_all(name: str, kwargs: dict[str, Any], count: int) -> None:
    with plangym_like.make(name, **kwargs) as env:
        transitions = Transitions(env, count, seed=count)
        assert len(set(transitions.digests)) > count // 4
    for seed, env in enumerate(workers(name, kwargs)):
        transitions.check(env, seed)
        # Whoever is free takes the next rows, and the caller may take them all.
        while isinstance(env, plangym_like.ParallelEnv) and not env.stats.rows_sent:
            transitions.check(env, seed)


@pytest.mark.parametrize("which", first_of(SUITE, 2))
def test_some_transitions(which):
    check_all(*SUITE[which], count=150)


@pytest.mark.full
@pytest.mark.parametrize("which", SUITE)
def test_ten_thousand_transitions(which):
    check_all(*SUITE[which], count=10_000)


def test_the_example_of_plangyms_own_parallel_env():
    from plangym_like import AtariEnv, ParallelEnv

    env = ParallelEnv(
        env_class=AtariEnv, name="MsPacman-v0", clone_seeds=True, autoreset=True, blocking=False
    )
    state, obs, info = env.reset()
    states = [state.copy() for _ in range(10)]
    actions = [env.sample_action() for _ in range(10)]
    data = env.step_batch(states=states, actions=actions)
    new_states, observs, rewards, ends, truncated, infos = data
    assert env.n_workers == 8
    assert len(new_states) == len(observs) == len(rewards) == len(ends) == 10
    assert len(truncated) == len(infos) == 10
    assert observs.shape == (10, *obs.shape) and "lives" in info and "lives" in infos[0]
    with AtariEnv("MsPacman-v0") as serial:
        expected = serial.step_batch(states=states, actions=actions)
        assert digests(data) == digests(expected)
    env.close()
