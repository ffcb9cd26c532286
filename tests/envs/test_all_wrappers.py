"""Every wrapper that Gymnasium ships is saved exactly, or refused by name with the reason."""

import importlib.util
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from suite import is_at_least
from usual import first_of

import plangym_like
from plangym_like.errors import SnapshotError
from plangym_like.testing import check_env

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*already returned terminated", "ignore:.*Casting.*precision", "ignore:.*precision"
)


def _newer(name: str) -> Any:
    """Return a wrapper that Gymnasium 1.1 does not have, ``None`` with such a version."""
    return getattr(wrappers, name, None)


POLE, PENDULUM, LAKE = "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"
# What is checked: the environment, and the wrapper with its arguments.
EXACT: dict[str, tuple[str, Any]] = {
    "AddRenderObservation": (POLE, wrappers.AddRenderObservation),
    "AddWhiteNoise": (POLE, (_newer("AddWhiteNoise"), {"probability_of_noise_per_pixel": 0.5})),
    "Autoreset": (POLE, wrappers.Autoreset),
    "ClipAction": (PENDULUM, wrappers.ClipAction),
    "ClipReward": (PENDULUM, (wrappers.ClipReward, {"min_reward": -1, "max_reward": 0})),
    "DelayObservation": (POLE, (wrappers.DelayObservation, {"delay": 3})),
    "DiscretizeAction": (PENDULUM, (_newer("DiscretizeAction"), {"bins": 5})),
    "DiscretizeObservation": (PENDULUM, (_newer("DiscretizeObservation"), {"bins": 4})),
    "DtypeObservation": (POLE, (wrappers.DtypeObservation, {"dtype": np.float64})),
    "FilterObservation": ("Blackjack-v1", (wrappers.FilterObservation, {"filter_keys": [0, 1]})),
    "FlattenObservation": (LAKE, wrappers.FlattenObservation),
    "FrameStackObservation": (POLE, (wrappers.FrameStackObservation, {"stack_size": 3})),
    "MaxAndSkipObservation": (PENDULUM, (wrappers.MaxAndSkipObservation, {"skip": 3})),
    "NormalizeObservation": (PENDULUM, wrappers.NormalizeObservation),
    "NormalizeReward": (PENDULUM, wrappers.NormalizeReward),
    "OrderEnforcing": (POLE, wrappers.OrderEnforcing),
    "PassiveEnvChecker": (POLE, wrappers.PassiveEnvChecker),
    "RecordEpisodeStatistics": (POLE, wrappers.RecordEpisodeStatistics),
    "RepeatAction": (POLE, (_newer("RepeatAction"), {"num_repeats": 3})),
    "RescaleAction": (PENDULUM, (wrappers.RescaleAction, {"min_action": -1, "max_action": 1})),
    "RescaleObservation": (
        "MountainCar-v0",
        (
            wrappers.RescaleObservation,
            {"min_obs": np.zeros(2, np.float32), "max_obs": np.ones(2, np.float32)},
        ),
    ),
    "ReshapeObservation": (POLE, (wrappers.ReshapeObservation, {"shape": (2, 2)})),
    "StickyAction": (POLE, (wrappers.StickyAction, {"repeat_action_probability": 0.5})),
    "TimeAwareObservation": (POLE, [(wrappers.TimeLimit, 20), wrappers.TimeAwareObservation]),
    "TimeLimit": (POLE, (wrappers.TimeLimit, {"max_episode_steps": 9})),
    "TransformAction": (
        LAKE,
        (wrappers.TransformAction, {"func": lambda action: 3 - action, "action_space": None}),
    ),
    "TransformObservation": (
        POLE,
        (wrappers.TransformObservation, {"func": np.negative, "observation_space": None}),
    ),
    "TransformReward": (POLE, (wrappers.TransformReward, {"func": lambda reward: reward / 3})),
    "ResizeObservation": (
        POLE,
        [wrappers.AddRenderObservation, (wrappers.ResizeObservation, {"shape": (40, 40)})],
    ),
    # In `make test`, all but these three.
    "AtariPreprocessing": ("ALE/Pong-v5", (wrappers.AtariPreprocessing, {"frame_skip": 1})),
    "GrayscaleObservation": (POLE, [wrappers.AddRenderObservation, wrappers.GrayscaleObservation]),
    "ObstructView": (
        POLE,
        (_newer("ObstructView"), {"obstructed_pixels_ratio": 0.3, "obstruction_width": 5}),
    ),
}
REFUSED: dict[str, tuple[Callable[[gymnasium.Env], Any], str]] = {
    "RecordVideo": (lambda env: wrappers.RecordVideo(env, "videos"), "writes files"),
    "HumanRendering": (wrappers.HumanRendering, "owns a window"),
    "RenderCollection": (wrappers.RenderCollection, "has no limit"),
    "NumpyToTorch": (lambda env: wrappers.NumpyToTorch(env), "another library"),
    "ArrayConversion": (lambda env: wrappers.ArrayConversion(env, np, np), "another library"),
    "JaxToTorch": (lambda env: wrappers.JaxToTorch(env), "another library"),
}
# It is made around environments in JAX, and remembers nothing.
ELSEWHERE = {"JaxToNumpy"}
IMAGES = {
    "AddRenderObservation",
    "AddWhiteNoise",
    "GrayscaleObservation",
    "ObstructView",
    "ResizeObservation",
}
NEEDS = {
    "RecordVideo": "moviepy",
    "NumpyToTorch": "array_api_compat",
    "ArrayConversion": "array_api_compat",
    "JaxToTorch": "jax",
    "ResizeObservation": "cv2",
    "GrayscaleObservation": "cv2",
    "HumanRendering": "pygame",
}


def test_every_wrapper_of_gymnasium_is_on_one_of_the_lists() -> None:
    shipped = {name for name in wrappers.__all__ if name != "vector"}
    listed = EXACT.keys() | REFUSED.keys() | ELSEWHERE
    assert shipped == listed if is_at_least("gymnasium", "1.3") else shipped < listed


def _skip_where_something_is_missing(name: str) -> None:
    if name not in wrappers.__all__:
        pytest.skip(f"Gymnasium {gymnasium.__version__} has no {name}")
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")


@pytest.mark.parametrize("name", first_of(EXACT, len(EXACT) - 3))
def test_it_is_saved_exactly(name: str) -> None:
    _skip_where_something_is_missing(name)
    env_id, made = EXACT[name]
    chain = made if isinstance(made, list) else [made]
    more: dict[str, Any] = {"render_mode": "rgb_array"} if name in IMAGES else {}
    if name == "ReshapeObservation":
        more["remove_time_limit"] = False
    if name == "AtariPreprocessing":
        more["frameskip"] = 1
    steps = 2 if env_id.startswith("ALE/") or name in IMAGES else 4
    report = check_env(env_id, states=steps, steps=steps, workers=(), wrappers=chain, **more)
    assert report.ok, str(report)
    assert report.exactness == "exact"


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name: str) -> None:
    _skip_where_something_is_missing(name)
    make, reason = REFUSED[name]
    with pytest.raises(SnapshotError, match=f"{name} cannot be saved: .*{reason}"):
        plangym_like.make(POLE, wrappers=[make], render_mode="rgb_array")
