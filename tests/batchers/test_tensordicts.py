"""Fragments and episodes in torchrl's layout hold the transitions that were made."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_envs import Nested

from plangym_like.batchers.episodes import Agent, DictTensor, EpisodeBatcher, GymEnv, Trajectories
from plangym_like.batchers.randomness import seed_groups
from plangym_like.batchers.rollout import BaseActorModule, same
from plangym_like.errors import InputError


class Lean(BaseActorModule):
    """Keeps the pole up for a while, and has more outputs than actions."""

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ):
        return (obs[..., 2] > 0).long(), (), {"value": obs.sum(-1), "logits": obs[..., :2]}


class Carrier(BaseActorModule):
    """Has actions with parts."""

    def forward(self, obs: Any, *before: Any, hx: Any = None) -> Any:
        return {"move": obs["place"] / 9, "pick": obs["cargo"][0] % 3}, (), {}


def _cart_pole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=30)


def _check_against_gymnasium(steps: Any, seed: int) -> int:
    """Play the recorded actions of one environment again; return the number of episodes."""
    env, episodes = _cart_pole(), 0
    obs, _ = env.reset(seed=seed)
    for step in steps:
        assert step["observation"].numpy().tobytes() == obs.tobytes()
        obs, reward, terminated, truncated, _ = env.step(step["action"].item())
        following = step["next"]
        assert following["observation"].numpy().tobytes() == obs.tobytes()
        found = [following[key] for key in ("reward", "terminated", "truncated", "done")]
        assert [each.shape for each in found] == [(1,)] * 4
        assert [each.item() for each in found] == [
            reward,
            terminated,
            truncated,
            terminated or truncated,
        ]
        if terminated or truncated:
            obs, _ = env.reset()
            episodes += 1
    return episodes


def test_a_fragment_holds_the_transitions() -> None:
    envs = [_cart_pole() for _ in range(3)]
    with same.rollout(envs, Lean(), 80, seed=[3, 4, 5]) as it:
        fragment = next(it)
    steps = fragment.to_tensordict()
    assert steps.batch_size == (3, 80) and "mask" not in steps
    assert torch.equal(steps["value"], fragment.actor["value"].T)
    assert sum(_check_against_gymnasium(steps[i], 3 + i) for i in range(3)) > 3


def test_trees_keep_their_names() -> None:
    with same.rollout([Nested() for _ in range(2)], Carrier(), 20, seed=0) as it:
        fragment = next(it)
    steps, state = fragment.to_tensordict(), fragment.state
    assert torch.equal(steps["cargo", "1"], state.obs["cargo"][1][:-1].transpose(0, 1))
    assert torch.equal(steps["action", "move"], state.act["move"].transpose(0, 1))
    assert steps["next", "place"].shape == (2, 20, 2)


def test_frozen_steps_are_masked() -> None:
    with same.rollout([_cart_pole() for _ in range(2)], Lean(), 60, sticky=True, seed=0) as it:
        fragment = next(it)
    steps = fragment.to_tensordict()
    assert steps["mask"].sum(1).tolist() == [30, 30] and steps["mask"][:, :30].all()
    assert not steps["next", "done"][:, :29].any() and steps["next", "done"][:, 29].all()


def test_what_is_unknown_or_named_twice_raises() -> None:
    with same.rollout([_cart_pole()], Lean(), 60, keep_final=False, seed=0) as it:
        fragment = next(it)
    with pytest.raises(InputError, match="keep_final"):
        fragment.to_tensordict()
    going_on = fragment._replace(
        state=fragment.state._replace(fin=torch.zeros_like(fragment.state.fin))
    )
    assert going_on.to_tensordict().batch_size == (1, 60)
    with pytest.raises(InputError, match="action"):
        going_on._replace(actor={"action": fragment.state.rew}).to_tensordict()
    steps = {"mask": torch.zeros(1, 2), "_reward": torch.zeros(1, 2)}
    with pytest.raises(InputError, match="mask"):
        Trajectories(steps, torch.tensor([2])).to_tensordict()
    for name in ("", "_"):
        steps = {f"{name}frame": torch.zeros(1, 2), f"{name}observation": torch.ones(1, 2)}
        with pytest.raises(InputError, match="would be called .'observation'"):
            Trajectories(steps, torch.tensor([2])).to_tensordict()


class Leaner(Agent):
    def __call__(
        self, state: Any, observation: Any, agent_info: Any = None, history: Any = None
    ) -> Any:
        action = (observation["frame"][:, 2] > 0).long()
        return DictTensor(), DictTensor({"action": action}), DictTensor()


def _create_env(seed: int) -> GymEnv:
    return GymEnv([_cart_pole() for _ in range(2)], seed)


def test_episodes_hold_the_transitions() -> None:
    with EpisodeBatcher(25, 4, 0, [7], Leaner, {}, _create_env, {}) as batcher:
        batcher.execute(2)
        trajectories = batcher.get()
    steps = trajectories.to_tensordict()
    assert steps.batch_size == (2, trajectories.n_timesteps)
    assert torch.equal(steps["mask"], trajectories.mask())
    ((_, seeds),) = seed_groups(7, [2])
    for row, length in enumerate(trajectories.lengths.tolist()):
        _check_against_gymnasium(steps[row, :length], seeds[row])
        assert np.count_nonzero(steps["next", "reward"][row, length:]) == 0
