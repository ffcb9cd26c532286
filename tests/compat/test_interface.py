"""The layer's names, and what steps and batches return."""

import importlib
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

import plangym_like.compat.plangym as plangym
from plangym_like.compat.plangym import environment_names, registry, utils
from plangym_like.compat.plangym.control import ClassicControl
from plangym_like.errors import InputError

LAYER = "plangym_like.compat.plangym"
PLACES = {
    "core": ("PlanEnv", "PlangymEnv", "wrap_callable"),
    "registry": ("make", "get_planenv_class"),
    "control": ("ClassicControl", "Box2DEnv", "LunarLander", "MujocoEnv", "DMControlEnv"),
    "control.classic_control": ("ClassicControl",),
    "control.box_2d": ("Box2DEnv",),
    "control.mujoco": ("MujocoEnv",),
    "control.dm_control": ("DMControlEnv",),
    "control.lunar_lander": ("FastGymLunarLander", "LunarLander"),
    "videogames": ("AtariEnv", "MontezumaEnv", "RetroEnv"),
    "videogames.atari": ("AtariEnv", "ale_to_ram"),
    "videogames.env": ("VideogameEnv",),
    "videogames.montezuma": ("CustomMontezuma", "MontezumaEnv", "MontezumaPosLevel"),
    "videogames.retro": ("ActionDiscretizer", "RetroEnv"),
    "vectorization": ("ParallelEnv", "RayEnv"),
    "vectorization.env": ("VectorizedEnv",),
    "vectorization.parallel": ("BatchEnv", "ExternalProcess", "ParallelEnv"),
    "vectorization.ray": ("RayEnv", "RemoteEnv"),
    "utils": ("process_frame", "remove_time_limit", "get_display", "GrayScaleObservation"),
    "environment_names": ("ATARI", "BOX_2D", "CLASSIC_CONTROL", "DM_CONTROL", "MUJOCO", "RETRO"),
}
NEEDED = {
    "control": ("Box2D",),
    "control.lunar_lander": ("Box2D",),
    "videogames": ("ale_py", "stable_retro"),
    "videogames.montezuma": ("ale_py",),
    "videogames.retro": ("stable_retro",),
    "vectorization.ray": ("ray",),
}


@pytest.fixture
def env() -> Iterator[Any]:
    with_lists = plangym.make("CartPole-v1")
    yield with_lists
    with_lists.close()


@pytest.mark.parametrize("place", PLACES)
def test_names_are_where_plangym_has_them(place: str) -> None:
    for needed in NEEDED.get(place, ()):
        # Box2D warns when it is imported, which this ignores.
        pytest.importorskip(needed)
    module = importlib.import_module(f"{LAYER}.{place}")
    for name in PLACES[place]:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_names_of_environments_make_environments() -> None:
    assert "CartPole-v1" in environment_names.CLASSIC_CONTROL
    assert environment_names.BOX_2D[-1] == "FastLunarLander-v0"
    for name in environment_names.CLASSIC_CONTROL:
        assert isinstance(plangym.make(name, delay_setup=True), ClassicControl)


@pytest.mark.parametrize(
    ("options", "vectorized"),
    [({}, None), ({"n_workers": 2}, "ParallelEnv"), ({"n_workers": 2, "ray": True}, "RayEnv")],
)
def test_the_classes_of_an_environment(options: dict[str, Any], vectorized: str | None) -> None:
    if options.get("ray"):
        pytest.importorskip("ray")
    found, env_class = registry.get_environment_class("CartPole-v1", **options)
    assert env_class is ClassicControl
    assert getattr(found, "__name__", None) == vectorized


def test_unknown_names() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="Near matches: CartPole"):
        plangym.make("CarPole-v1")
    env = plangym.make("FrozenLake-v1")
    assert type(env) is plangym.PlangymEnv
    assert env.step_batch([0], [env.reset()[0]])[2] == [0.0]


def test_a_step(env: Any) -> None:
    state, obs, info = env.reset()
    assert obs.shape == env.obs_shape == (4,) and info == {}
    assert len(env.reset(return_state=False)) == 2
    env.seed(3)
    state, first, _ = env.reset()
    env.seed(3)
    assert np.array_equal(env.reset()[1], first)
    result = env.step(1, state, dt=3)
    assert type(result) is tuple and len(result) == 6
    after, obs, reward, terminal, truncated, info = result
    assert (reward, terminal, truncated, info) == (3.0, False, False, {"n_step": 3, "dt": 3})
    assert np.array_equal(env.get_state(), after)
    assert len(env.step(1)) == 5 and len(env.step(1, return_state=True)) == 6
    assert len(env.step(1, state, return_state=False)) == 5
    # As in plangym, a fraction of a step is cut off.
    assert env.step(1, state, dt=2.9)[-1]["n_step"] == 2


def test_an_episode_begins_again_by_itself(env: Any) -> None:
    state, *_ = env.reset()
    after, obs, _, terminal, _, info = env.step(1, state, dt=100)
    assert terminal and info["n_step"] < 100
    assert not np.array_equal(env.get_state(), after)
    env.autoreset = False
    after = env.step(1, state, dt=100)[0]
    assert np.array_equal(env.get_state(), after)


def test_batches_are_lists(env: Any) -> None:
    state, *_ = env.reset()
    actions = [0, 1, 1]
    data = env.step_batch(actions, states=[state] * 3, dt=[1, 2, 3])
    assert type(data) is tuple and [type(part) for part in data] == [list] * 6
    states, observs, rewards, terminals, truncateds, infos = data
    assert rewards == [1.0, 2.0, 3.0] and terminals == truncateds == [False] * 3
    assert infos == [{"n_step": dt, "dt": dt} for dt in (1, 2, 3)]
    assert np.array_equal(env.get_state(), state)
    for index, (action, dt) in enumerate(zip(actions, (1, 2, 3), strict=True)):
        after, obs, *_ = env.step(action, state, dt=dt)
        assert np.array_equal(after, states[index]) and np.array_equal(obs, observs[index])


def test_batches_without_states_go_on_from_row_to_row(env: Any) -> None:
    state, *_ = env.reset()
    for states in (None, [None] * 3):
        env.set_state(state)
        found = env.step_batch([0, 1, 1], states)
        assert len(found) == 6
        env.set_state(state)
        assert np.array_equal([env.step(action)[0] for action in (0, 1, 1)], found[1])
    assert len(env.step_batch([0, 1], return_state=None)) == 5
    assert len(env.step_batch([0, 1], [state] * 2, return_state=False)) == 5


def test_clones_and_pickles(env: Any) -> None:
    fast = plangym.make("CartPole-v1", frameskip=4, render_mode=None, autoreset=False)
    clone = fast.clone(autoreset=True)
    assert (clone.frameskip, clone.render_mode, clone.autoreset) == (4, None, True)
    state, *_ = env.reset()
    copy = pickle.loads(pickle.dumps(env))
    assert np.array_equal(copy.get_state(), state)
    late = env.clone(delay_setup=True)
    assert late._gym_env is None
    assert late.reset()[1].shape == (4,)


def test_wrappers(env: Any) -> None:
    env.apply_wrappers([(TransformReward, {"func": lambda reward: 2 * reward})])
    assert isinstance(env.gym_env, TransformReward)
    assert env.step_batch([0], [env.reset()[0]])[2] == [2.0]
    env.wrap(TimeLimit, 5)
    env.reset()
    assert env.step(0, dt=9)[-1]["n_step"] == 5
    env._gym_env = env.gym_env.env.env
    assert env.step(0)[1] == 1.0
    timed = plangym.make("CartPole-v1", remove_time_limit=False)
    assert "TimeLimit" in str(timed.gym_env) and "TimeLimit" not in str(env.gym_env)


def test_observed_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = plangym.make("CartPole-v1", obs_type="rgb")
    state, obs, _ = env.reset()
    assert obs.shape == env.obs_shape == env.img_shape == (400, 600, 3)
    assert np.array_equal(obs, env.get_image())
    drawn = plangym.make("CartPole-v1", return_image=True)
    _, _, info = drawn.reset()
    assert info["rgb"].shape == (400, 600, 3)
    *_, infos = drawn.step_batch([0, 1], [drawn.get_state()] * 2)
    *_, info = drawn.step(0)
    assert np.array_equal(infos[0]["rgb"], info["rgb"])
    human = plangym.make("CartPole-v1", render_mode="human")
    human.reset()
    human.step(0)
    assert human.render().shape == (400, 600, 3)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="Invalid render_mode"):
        plangym.make("CartPole-v1", render_mode="print")
    with pytest.raises(ValueError, match="return_image=True requires"):
        plangym.make("CartPole-v1", render_mode=None, return_image=True)
    with pytest.raises(ValueError, match="obs_type 'ram' is not one of"):
        plangym.make("CartPole-v1", obs_type="ram")
    blind = plangym.make("CartPole-v1", render_mode=None)
    with pytest.raises(RuntimeError, match="Cannot get image when render_mode=None"):
        blind.get_image()
    assert blind.img_shape is None
    with pytest.raises(InputError, match="clip_reward"):
        plangym.make("CartPole-v1", clip_reward=True)


def test_frames() -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("cv2")
    frame = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    for process in (utils.process_frame, utils.process_frame_pil, utils.process_frame_opencv):
        assert np.array_equal(process(frame), frame)
        assert process(frame, width=10, height=8).shape == (8, 10, 3)
        assert process(frame, mode="GRAY").shape == process(frame, mode="L").shape == (20, 30)
    assert np.array_equal(utils.process_frame_opencv(frame, mode="BGR"), frame[:, :, ::-1])


def test_time_limits_are_removed() -> None:
    env = TransformReward(gymnasium.make("CartPole-v1", max_episode_steps=7), lambda reward: reward)
    unlimited = utils.remove_time_limit(env)
    assert "TimeLimit" not in str(unlimited)
    assert unlimited.spec is not None and unlimited.spec.max_episode_steps == 1e100
