"""AtariPreprocessing without unread screens: the bytes are those of Gymnasium."""

from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, RecordEpisodeStatistics

import plangym_like
from plangym_like import make_vec
from plangym_like.envs import preprocessed_atari
from plangym_like.envs.preprocessed_atari import skip_unread_screens, source_digest

gymnasium.register_envs(ale_py)
pytest.importorskip("cv2", reason="AtariPreprocessing needs opencv-python")
if source_digest() not in preprocessed_atari._KNOWN:
    pytest.skip("this version of AtariPreprocessing is not replaced", allow_module_level=True)


def game(name: str = "Breakout", frameskip: int = 1, **options: Any) -> gymnasium.Env[Any, Any]:
    inner = gymnasium.make(f"ALE/{name}-v5", frameskip=frameskip)
    return AtariPreprocessing(inner, **options)


def is_replaced(env: Any) -> bool:
    while not isinstance(env, AtariPreprocessing):
        env = env.env
    return "step" in vars(env)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"grayscale_obs": False},
        {"terminal_on_life_loss": True},
        {"scale_obs": True, "grayscale_newaxis": True},
        {"frame_skip": 3, "screen_size": (60, 40)},
        {"frame_skip": 1, "frameskip": 4, "noop_max": 0},
        {"frame_skip": 2},
    ],
    ids=str,
)
def test_steps_are_those_of_gymnasium(options: dict[str, Any]) -> None:
    quick, plain = (FrameStackObservation(game(**options), 3) for _ in range(2))
    skip_unread_screens(quick)
    assert is_replaced(quick) and "step" in vars(quick) and not is_replaced(plain)
    assert_same(quick.reset(seed=3), plain.reset(seed=3))
    quick.action_space.seed(3)
    episodes = 0
    for step in range(700):
        action = quick.action_space.sample()
        one, other = quick.step(action), plain.step(action)
        assert_same(one, other, f"step {step}")
        assert list(map(type, one)) == list(map(type, other))
        if one[2] or one[3]:
            episodes += 1
            assert_same(quick.reset(), plain.reset())
    assert episodes > 0
    assert quick.env.game_over == plain.env.game_over and quick.env.lives == plain.env.lives
    for own, theirs in zip(quick.env.obs_buffer, plain.env.obs_buffer, strict=True):
        np.testing.assert_array_equal(own, theirs)
    np.testing.assert_array_equal(quick.stacked_obs, plain.stacked_obs)
    np.testing.assert_array_equal(quick.obs_queue, plain.obs_queue)
    quick.close()
    plain.close()


def test_what_reads_screens_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Between(gymnasium.Wrapper[Any, Any, Any, Any]):
        pass

    class Own(AtariPreprocessing):
        pass

    inner = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    for env in (AtariPreprocessing(Between(inner)), Own(inner), inner):
        skip_unread_screens(env)
        assert "step" not in vars(env)
    monkeypatch.setattr(preprocessed_atari, "_KNOWN", frozenset())
    unknown = game()
    skip_unread_screens(unknown)
    assert not is_replaced(unknown)
    inner.close()
    unknown.close()


class Raised(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return reward + 1.0


@pytest.mark.parametrize("what", ["wrapper", "method"])
def test_what_is_put_inside_later_takes_effect(what: str) -> None:
    quick, plain = game(noop_max=0), game(noop_max=0)
    skip_unread_screens(quick)
    for env in (quick, plain):
        env.reset(seed=0)
        env.step(0)
        if what == "wrapper":
            env.env = Raised(env.env)  # type: ignore[attr-defined]
        else:
            base: Any = env.unwrapped
            base.step = partial(_raised, base.step)
    one, other = quick.step(0), plain.step(0)
    assert_same(one, other)
    assert one[1] == 4.0


def _raised(step: Any, action: Any) -> Any:
    obs, reward, *rest = step(action)
    return obs, reward + 1.0, *rest


def test_observations_that_were_returned_do_not_change() -> None:
    env = FrameStackObservation(game(), 3)
    skip_unread_screens(env)
    env.reset(seed=0)
    first = env.step(1)[0]
    kept = first.copy()
    assert not np.array_equal(env.step(2)[0], kept)
    np.testing.assert_array_equal(first, kept)
    env.close()


def test_a_step_before_the_first_reset_is_refused() -> None:
    env = game()
    skip_unread_screens(env)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.close()


def test_a_plan_env_does_not_draw_them_either() -> None:
    wrappers = [AtariPreprocessing, partial(FrameStackObservation, stack_size=2)]
    quick, plain = (
        plangym_like.make("ALE/Breakout-v5", frameskip=1, wrappers=wrappers) for _ in range(2)
    )
    assert quick.simulator.base.unread
    plain.simulator.base.unread = False
    states = [env.reset(seed=1).state for env in (quick, plain)]
    quick.action_space.seed(1)
    for step in range(60):
        actions = [quick.action_space.sample() for _ in range(3)]
        one, other = (
            env.step_batch(actions, [state] * 3)
            for env, state in zip((quick, plain), states, strict=True)
        )
        assert_same(one, other, f"step {step}")
        states = [one.states[step % 3], other.states[step % 3]]
    quick.close()
    plain.close()


@pytest.mark.parametrize("n_workers", [None, 2])
def test_make_vec_is_sync_vector_env(n_workers: int | None) -> None:
    def factory() -> gymnasium.Env[Any, Any]:
        return RecordEpisodeStatistics(FrameStackObservation(game(terminal_on_life_loss=True), 4))

    vec = make_vec(factory, 3, n_workers)
    sync = gymnasium.vector.SyncVectorEnv([factory] * 3)
    assert_same(vec.reset(seed=5)[0], sync.reset(seed=5)[0])
    sync.action_space.seed(5)
    for step in range(200):
        actions = sync.action_space.sample()
        for mine, theirs in zip(vec.step(actions)[:4], sync.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs, f"step {step}")
    vec.close()
    sync.close()
