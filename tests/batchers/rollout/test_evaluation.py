"""Evaluation, and environments that are used elsewhere."""

import pytest
from counting import Count, Follower

from plangym_like.batchers.rollout import evaluate, same
from plangym_like.errors import InputError


def test_evaluation_plays_whole_episodes() -> None:
    actor = Follower()
    rewards = evaluate([Count(7), Count(3)], actor)
    assert rewards.shape == (7, 2)
    assert rewards[:, 0].tolist() == [10 * t + t % 4 for t in range(7)]
    assert rewards[:, 1].tolist() == [0, 11, 22, 0, 0, 0, 0]
    assert evaluate([Count(7)], actor, n_steps=4).shape == (4, 1)
    assert actor.training
    actor.eval()
    evaluate([Count(2)], actor)
    assert not actor.training


def test_environments_that_were_reset_elsewhere_are_refused() -> None:
    actor, envs = Follower(), [Count(), Count()]
    rollout = same.rollout(envs, actor, n_steps=3)
    next(rollout)
    evaluate([Count(), Count()], actor, n_steps=2)
    next(rollout)
    evaluate(envs, actor, n_steps=2)
    with pytest.raises(InputError, match="environment 0 has been reset elsewhere"):
        next(rollout)
    second, third = (same.rollout(envs, actor, n_steps=3) for _ in range(2))
    next(second)
    next(third)
    with pytest.raises(InputError, match="environment 0 has been reset elsewhere"):
        next(second)
    assert next(third).state.obs[0].tolist() == [[3], [3]]
