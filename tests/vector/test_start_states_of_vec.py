"""`make_vec(start_states=...)`: episodes begin in given states."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, SnapshotError, StateMismatchError

MODES = ["NextStep", "SameStep"]


@pytest.fixture
def maker() -> Iterator[PlanEnv]:
    with plangym_like.make("CartPole-v1", remove_time_limit=False) as env:
        yield env


def starts_of(maker: PlanEnv, count: int = 6) -> tuple[Any, Any]:
    """Return states near the end of an episode, and their observations."""
    states, obs, _ = maker.reset(seed=0)
    rows, seen = [], []
    for _ in range(count):
        states, obs, *_ = maker.step(1, state=states)
        rows.append(states)
        seen.append(obs)
    return np.stack(rows), np.stack(seen)


def begins_in(obs: Any, starts: tuple[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each of the observations whether it is that of a start state."""
    return (obs[:, None] == starts[1][None]).all(axis=2).any(axis=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", first_of([{}, {"vectorise": False}, {"n_workers": 2}], 2))
def test_every_episode_begins_in_one_of_them(
    maker: PlanEnv, mode: str, options: dict[str, Any]
) -> None:
    starts = starts_of(maker)
    with plangym_like.make_vec(
        "CartPole-v1", 5, autoreset_mode=mode, start_states=starts, **options
    ) as envs:
        obs, _ = envs.reset(seed=3)
        assert begins_in(obs, starts).all()
        fresh, ends = np.zeros(5, bool), 0
        for _ in range(60):
            before, ended = envs.get_states(), envs.ended
            expected = maker.step_batch([1] * 5, before)
            obs, rewards, terminated, truncated, _ = envs.step([1] * 5)
            fresh = terminated | truncated if mode == "SameStep" else ended
            assert begins_in(obs[fresh], starts).all()
            assert np.array_equal(obs[~fresh], expected.obs[~fresh])
            ends += int(fresh.sum())
        assert ends > 20


@pytest.mark.parametrize("mode", MODES)
def test_the_seed_of_reset_decides_which(maker: PlanEnv, mode: str) -> None:
    starts = starts_of(maker)

    def play(seed: int) -> list[Any]:
        with plangym_like.make_vec(
            "CartPole-v1", 4, autoreset_mode=mode, start_states=starts
        ) as envs:
            return [envs.reset(seed=seed)[0], *(envs.step([1] * 4)[0] for _ in range(30))]

    assert np.array_equal(play(7), play(7))
    assert not np.array_equal(play(7), play(8))


def test_equal_states_draw_different_numbers() -> None:
    with plangym_like.make("FrozenLake-v1", remove_time_limit=False) as maker:
        state, obs, _ = maker.reset(seed=0)
    starts = state[None], np.array([obs])
    with plangym_like.make_vec("FrozenLake-v1", 32, start_states=starts) as envs:
        envs.reset(seed=0)
        assert len(set(envs.step([2] * 32)[0].tolist())) > 1


def test_a_mask_leaves_the_others_alone(maker: PlanEnv) -> None:
    starts = starts_of(maker)
    with plangym_like.make_vec("CartPole-v1", 3, start_states=starts) as envs:
        envs.reset(seed=0)
        obs = envs.step([0, 1, 0])[0]
        mask = np.array([True, False, True])
        again, _ = envs.reset(options={"reset_mask": mask})
        assert np.array_equal(again[1], obs[1])
        assert begins_in(again[mask], starts).all()


def test_stable_baselines(maker: PlanEnv) -> None:
    pytest.importorskip("stable_baselines3")
    starts = starts_of(maker)
    envs = plangym_like.make_vec("CartPole-v1", 3, start_states=starts).as_sb3()
    envs.seed(0)
    assert begins_in(envs.reset(), starts).all()
    ends = 0
    for _ in range(40):
        obs, _, dones, infos = envs.step(np.ones(3, int))
        assert begins_in(obs[dones], starts).all()
        assert all("terminal_observation" in infos[lane] for lane in np.flatnonzero(dones))
        ends += int(dones.sum())
    assert ends > 5
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_without_waiting_for_all(maker: PlanEnv, mode: str) -> None:
    starts = starts_of(maker)
    options: Any = {"start_states": starts, "autoreset_mode": mode, "vectorise": False}

    def play(batch_size: int) -> list[list[Any]]:
        """Return the observations of each environment's first 20 steps."""
        seen: list[list[Any]] = [[] for _ in range(4)]
        with plangym_like.make_vec("CartPole-v1", 4, batch_size=batch_size, **options) as envs:
            envs.async_reset(seed=5)
            while any(len(each) < 20 for each in seen):
                obs, *_, infos = envs.recv()
                envs.send([1] * batch_size, infos["env_id"])
                for lane, row in zip(infos["env_id"], obs, strict=True):
                    seen[lane].append(row)
        return [each[:20] for each in seen]

    alone = play(1)
    assert np.array_equal(alone, play(4))
    begun = begins_in(np.concatenate(alone), starts)
    assert begun[::20].all() and begun.sum() > 8


@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_dies(mode: str, maker: PlanEnv) -> None:
    pytest.importorskip("mujoco")
    with plangym_like.make("Hopper-v5", remove_time_limit=False) as hopper:
        states, obs, _ = hopper.reset(seed=0)
        first = hopper.step_batch(np.zeros((4, 3)), states, seeds=[1, 2, 3, 4], dt=[1, 2, 3, 4])
    starts = first.states, first.obs
    with plangym_like.make_vec(
        "Hopper-v5", 8, n_workers=2, autoreset_mode=mode, start_states=starts
    ) as envs:
        assert begins_in(envs.reset(seed=0)[0], starts).all()
        assert envs.pids
        os.kill(envs.pids[0], signal.SIGKILL)
        seen = [envs.step(np.zeros((8, 3)))[0] for _ in range(2)]
        assert envs.stats.deaths == 1
        lost = envs.stats.lanes_ended
        assert lost > 0
        assert begins_in(seen[0 if mode == "SameStep" else 1], starts).sum() >= lost


def test_texts_in_observations_may_be_tuples_or_lists() -> None:
    pytest.importorskip("minigrid")
    name = "MiniGrid-GoToDoor-5x5-v0"
    with plangym_like.make_vec(name, 2) as envs, plangym_like.make(name) as maker:
        obs, _ = envs.reset(seed=4)
        lanes = envs.get_states(), obs
        batch = maker.step_batch([0, 1], lanes[0])
    for rows, seen in (lanes, (batch.states, batch.obs)):
        with plangym_like.make_vec(name, 3, start_states=(rows, seen)) as envs:
            obs, _ = envs.reset(seed=0)
            assert set(obs["mission"]) <= set(seen["mission"])
            assert obs["image"].shape == (3, *seen["image"].shape[1:])


def test_what_does_not_fit_is_refused(maker: PlanEnv) -> None:
    rows, obs = starts_of(maker)
    make = plangym_like.make_vec
    with pytest.raises(InputError, match=r"start_states must be a pair \(rows, obs\)"):
        make("CartPole-v1", 2, start_states=rows)
    with pytest.raises(InputError, match="at least one state"):
        make("CartPole-v1", 2, start_states=(rows[:0], obs[:0]))
    with pytest.raises(InputError, match="6 state rows came with observations of shape"):
        make("CartPole-v1", 2, start_states=(rows, obs[:2]))
    with pytest.raises(InputError, match="do not fit the observation space"):
        make("CartPole-v1", 2, start_states=(rows, obs[:, :2]))
    with pytest.raises(StateMismatchError):
        make("Acrobot-v1", 2, start_states=(rows, np.zeros((6, 6), np.float32)))
    with pytest.raises(SnapshotError, match="no state rows"):
        make(lambda: gymnasium.make("CartPole-v1"), 2, start_states=(rows, obs))
