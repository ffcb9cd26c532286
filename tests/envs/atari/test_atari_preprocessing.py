"""AtariPreprocessing without unread screens: equal bytes."""

from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, RecordEpisodeStatistics
from usual import first_of

import plangym_like
from plangym_like import make_vec
from plangym_like.envs.wrapping import omit_unread_screens

gymnasium.register_envs(ale_py)
pytest.importorskip("cv2", reason="AtariPreprocessing needs opencv-python")


def game(name: str = "Breakout", frameskip: int = 1, **options: Any) -> gymnasium.Env[Any, Any]:
    inner = gymnasium.make(f"ALE/{name}-v5", frameskip=frameskip)
    return AtariPreprocessing(inner, **options)


def is_faster(env: Any) -> bool:
    return "_get_obs" in vars(env.unwrapped)


@pytest.mark.parametrize(
    "options",
    first_of(
        [
            {"frame_skip": 3, "screen_size": (60, 40), "terminal_on_life_loss": True},
            {"scale_obs": True, "grayscale_newaxis": True},
            {},
            {"grayscale_obs": False},
            {"frame_skip": 1, "frameskip": 4, "noop_max": 0},
            {"frame_skip": 2},
        ],
    ),
    ids=str,
)
def test_steps_are_those_of_gymnasium(options: dict[str, Any]) -> None:
    quick, plain = (FrameStackObservation(game(**options), 3) for _ in range(2))
    omit_unread_screens(quick)
    assert is_faster(quick) and not is_faster(plain)
    assert_same(quick.reset(seed=3), plain.reset(seed=3))
    quick.action_space.seed(3)
    for step in range(120):
        action = quick.action_space.sample()
        one, other = quick.step(action), plain.step(action)
        assert_same(one, other, f"step {step}")
        assert list(map(type, one)) == list(map(type, other))
        if one[2] or one[3] or step == 60:
            assert_same(quick.reset(), plain.reset())
    assert quick.env.game_over == plain.env.game_over and quick.env.lives == plain.env.lives
    for own, theirs in zip(quick.env.obs_buffer, plain.env.obs_buffer, strict=True):
        np.testing.assert_array_equal(own, theirs)
    np.testing.assert_array_equal(quick.stacked_obs, plain.stacked_obs)
    np.testing.assert_array_equal(quick.obs_queue, plain.obs_queue)
    quick.close()
    plain.close()


def test_what_reads_screens_itself_is_left_alone() -> None:
    class Between(gymnasium.Wrapper[Any, Any, Any, Any]):
        pass

    class Own(AtariPreprocessing):
        pass

    inner = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    for env in (AtariPreprocessing(Between(inner)), Own(inner), inner):
        omit_unread_screens(env)
        assert not is_faster(env)
    inner.close()


def test_a_plan_env_does_not_draw_them_either() -> None:
    wrappers = [AtariPreprocessing, partial(FrameStackObservation, stack_size=2)]
    quick, plain = (
        plangym_like.make("ALE/Breakout-v5", frameskip=1, wrappers=wrappers) for _ in range(2)
    )
    assert not quick.simulator.base._get_obs().any()
    del plain.simulator.base._get_obs
    states = [env.reset(seed=1).state for env in (quick, plain)]
    quick.action_space.seed(1)
    for step in range(20):
        actions = [quick.action_space.sample() for _ in range(3)]
        one, other = (
            env.step_batch(actions, [state] * 3)
            for env, state in zip((quick, plain), states, strict=True)
        )
        assert_same(one, other, f"step {step}")
        states = [one.states[step % 3], other.states[step % 3]]
    quick.close()
    plain.close()


@pytest.mark.parametrize("n_workers", first_of([None, 2]))
def test_make_vec_is_sync_vector_env(n_workers: int | None) -> None:
    def factory() -> gymnasium.Env[Any, Any]:
        return RecordEpisodeStatistics(FrameStackObservation(game(terminal_on_life_loss=True), 4))

    vec = make_vec(factory, 2, n_workers)
    sync = gymnasium.vector.SyncVectorEnv([factory] * 2)
    assert_same(vec.reset(seed=5)[0], sync.reset(seed=5)[0])
    sync.action_space.seed(5)
    for step in range(12):
        actions = sync.action_space.sample()
        for mine, theirs in zip(vec.step(actions)[:4], sync.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs, f"step {step}")
    vec.close()
    sync.close()
