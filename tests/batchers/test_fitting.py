"""What environments return fits their spaces, or is an error that says what does not, and where."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counting import Follower
from gymnasium import spaces

from plangym_like.batchers.rollout import evaluate
from plangym_like.batchers.trees import fitting
from plangym_like.errors import (
    ActionError,
    EnvApiError,
    InputError,
    ObservationError,
    RewardError,
)
from plangym_like.vector.lanes import StepArrays
from plangym_like.vector.make_lanes import make_lanes

IMAGE = spaces.Box(0, 255, (3,), np.uint8)
SPEED = spaces.Box(-9, 9, (1,), np.float32)


class Says(gymnasium.Env[Any, Any]):
    """Observes what it is told to, from the given step on, and something proper before."""

    action_space = spaces.Discrete(4)

    def __init__(self, space: Any, proper: Any, said: Any, at: int = 1, **answer: Any) -> None:
        self.observation_space = space
        self.proper, self.said, self.at = proper, said, at
        self.answer = answer
        self.steps = 0

    def _observe(self) -> Any:
        return self.said if self.steps >= self.at else self.proper

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        given = self.answer if self.steps >= self.at else {}
        ends = given.get("terminated", False), given.get("truncated", False)
        return self._observe(), given.get("reward", 1.0), *ends, {}


ZEROS = np.zeros(3, np.uint8)
WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "too large": (IMAGE, ZEROS, np.array([1, 300, 2]), "holds 300, which uint8"),
    "beyond float32": (
        SPEED,
        np.zeros(1, np.float32),
        np.array([1e300]),
        r"holds 1e\+300, which float32",
    ),
    "in a tuple": (
        spaces.Tuple((spaces.Discrete(3), SPEED)),
        (1, np.zeros(1, np.float32)),
        (1, 2.0),
        r"obs\[1\]: the observation has shape \(\)",
    ),
}


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("what", list(WRONG))
def test_an_observation_that_does_not_fit_its_space(what: str, at: int) -> None:
    space, proper, said, message = WRONG[what]
    envs = [Says(space, proper, proper), Says(space, proper, said, at)]
    lanes = make_lanes(envs)
    results = np.zeros(2, np.float32), np.zeros(2, bool), np.zeros(2, bool)

    def play() -> None:
        obs = lanes.start()
        for _ in range(3):
            lanes.step(np.zeros(2, np.int64), StepArrays(obs, *results))

    with pytest.raises(ObservationError, match=message) as caught:
        play()
    done = "stepped" if at else "reset"
    assert caught.value.__notes__ == [f"raised while lane 1 was {done}"]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"reward": None}, RewardError, "the reward None, which is not one number"),
        ({"reward": np.ones(2)}, RewardError, "which is not one number"),
        ({"reward": "3"}, RewardError, "the reward '3', which is not one number"),
        ({"truncated": "no"}, EnvApiError, "a str as truncated"),
    ],
)
def test_rewards_and_flags_are_single_ones(
    answer: dict[str, Any], error: type[Exception], message: str
) -> None:
    lanes = make_lanes([Says(IMAGE, ZEROS, ZEROS, **answer)])
    obs = lanes.start()
    results = np.zeros(1, np.float32), np.zeros(1, bool), np.zeros(1, bool)
    with pytest.raises(error, match=message) as caught:
        lanes.step(np.zeros(1, np.int64), StepArrays(obs, *results))
    assert caught.value.__notes__ == ["raised while lane 0 was stepped"]


def test_one_element_is_one_number_and_none_is_false() -> None:
    answers = {"reward": np.ones(1), "terminated": None, "truncated": np.array([True])}
    lanes = make_lanes([Says(IMAGE, ZEROS, ZEROS, **answers)])
    obs = lanes.start()
    results = np.zeros(1, np.float32), np.ones(1, bool), np.zeros(1, bool)
    lanes.step(np.zeros(1, np.int64), StepArrays(obs, *results))
    assert [array.item() for array in results] == [1, False, True]


def test_actions_keep_their_values() -> None:
    assert fitting(torch.tensor([3]), (1,), torch.uint8, "x").dtype == torch.uint8
    for value in (torch.tensor([300]), torch.tensor([-1]), torch.tensor([1.0])):
        with pytest.raises(ActionError, match="x must"):
            fitting(value, (1,), torch.uint8, "x")
    # The sign would change, and back.
    for number, kind, dtype in ((-56, torch.int8, torch.uint8), (200, torch.uint8, torch.int8)):
        with pytest.raises(ActionError, match="x must"):
            fitting(torch.tensor([number], dtype=kind), (1,), dtype, "x")


def test_only_actions_are_rounded() -> None:
    half = torch.tensor([0.5], dtype=torch.float64)
    assert fitting(half, (1,), torch.float32, "x").dtype == torch.float32
    for value, dtype in ((half, torch.float32), (half.float(), torch.bfloat16)):
        with pytest.raises(InputError, match="x must"):
            fitting(value, (1,), dtype, "x", is_action=False)
    assert fitting(half.float(), (1,), torch.float64, "x", is_action=False).tolist() == [0.5]


def test_what_is_no_array_cannot_become_a_tensor() -> None:
    with pytest.raises(InputError, match=r"elements of Text\(.*\) are not arrays of one shape"):
        evaluate([Says(spaces.Text(5), "a", "a")], Follower(), n_steps=5)
