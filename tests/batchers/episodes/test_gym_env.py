"""`GymEnv` and `GymInfEnv` beside Gymnasium's own environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from episode_envs import Count
from gymnasium import spaces
from small_envs import Nested

from plangym_like.batchers.episodes import DictTensor, GymEnv, GymInfEnv
from plangym_like.batchers.randomness import seed_groups
from plangym_like.errors import ActionError, InputError


def _act(actions: Any) -> DictTensor:
    return DictTensor({"action": torch.as_tensor(actions)})


def test_an_observation_says_what_led_to_it() -> None:
    env = GymEnv([Count(), Count()], 0)
    obs, running = env.reset()
    assert running.tolist() == [0, 1] and running.dtype is torch.int64
    assert obs["frame"].tolist() == [[0, -1], [0, -1]] and obs["initial_state"].all()
    assert not obs["reward"].any() and not obs["last_action"].any() and not obs["done"].any()
    (obs, was), (following, still) = env.step(_act([3, 4]))
    assert obs["frame"][:, 0].tolist() == [1, 1] and obs["reward"].tolist() == [3, 4]
    assert obs["last_action"].tolist() == [3, 4] and not obs["initial_state"].any()
    assert was.tolist() == still.tolist() == [0, 1]
    assert (following == obs).all()
    assert obs["reward"].dtype is torch.float32 and obs["done"].dtype is torch.bool


def test_ended_environments_drop_out() -> None:
    env = GymEnv([Count() for _ in range(3)], 0)
    env.reset(DictTensor({"end": torch.tensor([3, 1, 2]), "mark": torch.tensor([0.5, 1.5, 2.5])}))
    (obs, was), (following, still) = env.step(_act([0, 1, 2]))
    assert obs["terminated"].tolist() == [False, True, False] and was.tolist() == [0, 1, 2]
    assert still.tolist() == [0, 2] and following["frame"].tolist() == [[1, 0.5], [1, 2.5]]
    (obs, was), (following, still) = env.step(_act([7, 8]))
    assert was.tolist() == [0, 2] and obs["reward"].tolist() == [17, 18]
    assert still.tolist() == [0] and following["frame"].tolist() == [[2, 0.5]]
    _, (following, still) = env.step(_act([0]))
    assert still.tolist() == [] and following.n_elems() == 0
    with pytest.raises(InputError, match="no environment is running"):
        env.step(_act([0]))


def test_terminated_and_truncated_are_kept_apart() -> None:
    env = GymEnv([Count(cut=1), Count()], 0)
    env.reset(DictTensor({"end": torch.tensor([5, 1])}))
    (obs, _), (_, still) = env.step(_act([0, 0]))
    assert obs["truncated"].tolist() == [True, False] and still.tolist() == []
    assert obs["terminated"].tolist() == [False, True] and obs["done"].all()


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["vectorised", "one by one"])
def test_every_environment_has_a_seed_of_its_own(id: str, wrapped: bool) -> None:
    def make() -> Any:
        env = gymnasium.make(id, max_episode_steps=30)
        return gymnasium.wrappers.TransformReward(env, float) if wrapped else env

    env, own = GymEnv([make() for _ in range(3)], 10), [make() for _ in range(3)]
    rng = np.random.default_rng(0)
    space = own[0].action_space
    ((_, drawn),) = seed_groups(10, [3])
    for seeds in (drawn, [None] * 3):
        obs, running = env.reset()
        frames = [single.reset(seed=seed)[0] for single, seed in zip(own, seeds, strict=True)]
        assert obs["frame"].numpy().tobytes() == np.stack(frames).tobytes()
        while len(running):
            actions = (rng.normal(size=(3, 1)) if id[0] == "P" else rng.integers(0, 2, 3)).astype(
                space.dtype
            )
            (obs, was), (_, running) = env.step(_act(actions[: len(running)]))
            for row, lane in enumerate(was.tolist()):
                frame, reward, terminated, truncated, _ = own[lane].step(actions[row])
                assert obs["frame"][row].numpy().tobytes() == frame.tobytes()
                assert obs["reward"][row] == np.float32(reward)
                assert [obs["terminated"][row], obs["truncated"][row]] == [terminated, truncated]


def test_nests_go_in_and_out_by_name() -> None:
    env = GymEnv([Nested(), Nested()], 3)
    single = Nested()
    ((_, seeds),) = seed_groups(3, [2])
    first, _ = single.reset(seed=seeds[1])
    obs, _ = env.reset()
    assert obs["place"][1].tolist() == first["place"].tolist()
    assert obs["cargo", "0"].dtype is torch.int64 and obs["cargo", "1"].shape == (2, 3)
    move, pick = torch.tensor([[0.5, 0.5], [-1.0, 1.0]]), torch.tensor([1, 2])
    (obs, _), _ = env.step(DictTensor({"action": {"move": move, "pick": pick}}))
    second, *_ = single.step({"move": move[1].numpy(), "pick": 2})
    assert obs["place"][1].tolist() == second["place"].tolist()
    assert obs["cargo", "0"][1] == second["cargo"][0]
    assert obs["last_action", "pick"].tolist() == [1, 2]
    with pytest.raises(ActionError, match="parts \\['action/move', 'action/pick'\\]"):
        env.step(DictTensor({"action": {"move": move}}))


def test_environments_that_start_again() -> None:
    env = GymInfEnv([Count() for _ in range(2)], 0)
    env.reset(DictTensor({"end": torch.tensor([2, 3]), "mark": torch.tensor([5.0, 6.0])}))
    env.step(_act([0, 0]))
    (obs, was), (following, still) = env.step(_act([1, 2]))
    assert obs["frame"].tolist() == [[2, 5], [2, 6]] and obs["done"].tolist() == [True, False]
    assert following["frame"].tolist() == [[0, 5], [2, 6]]
    assert following["initial_state"].tolist() == [True, False]
    assert following["reward"].tolist() == [0, 12] and following["last_action"].tolist() == [0, 2]
    assert not following["done"].any() and was.tolist() == still.tolist() == [0, 1]
    (obs, _), _ = env.step(_act([3, 4]))
    assert obs["reward"].tolist() == [3, 24]


def test_options_arrive_as_plain_values() -> None:
    class Curious(Count):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.told = options
            return super().reset(seed=seed)

    envs = [Curious(), Curious()]
    env = GymEnv(envs, 0)
    env.reset()
    assert envs[0].told is None
    env.reset(
        DictTensor({"n": torch.tensor([1, 2]), "x": torch.rand(2, 3), "on": torch.ones(2) > 0})
    )
    told = envs[1].told
    assert type(told["n"]) is int and told["n"] == 2 and told["on"] is True
    assert isinstance(told["x"], np.ndarray) and told["x"].shape == (3,)
    with pytest.raises(InputError, match="3 rows for 2 environments"):
        env.reset(DictTensor({"n": torch.arange(3)}))


def test_wrong_actions_are_named() -> None:
    env = GymEnv([Count(), Count()], 0)
    env.reset()
    for wrong, message in (
        (DictTensor({"act": torch.zeros(2)}), "no field 'action'"),
        (_act([[0], [1]]), r"'action' must be a tensor \(2,\)"),
        (_act([0]), r"'action' must be a tensor \(2,\)"),
        (_act([0.5, 0.5]), r"must be a tensor \(2,\) torch.int64, got .*float32"),
    ):
        with pytest.raises(InputError, match=message):
            env.step(wrong)


def test_what_cannot_be_a_vec_env_is_refused() -> None:
    with pytest.raises(InputError, match="envs is empty"):
        GymEnv([], 0)
    with pytest.raises(InputError, match="seed must be a whole number"):
        GymEnv([Count()], -1)

    class Taken(Count):
        observation_space = spaces.Dict(reward=spaces.Discrete(99))

        def _show(self) -> Any:
            return {"reward": self.index}

    with pytest.raises(InputError, match="reserved names \\['reward'\\]"):
        GymEnv([Taken()], 0).reset()
