"""Losses written against rlplay's fragments, evaluation, and importance weights of exactly 1."""

import gymnasium
import pytest
import torch
from counting import Count, Follower, Recurrent
from usual import first_of

from plangym_like.batchers.rollout import evaluate, multi, same
from plangym_like.errors import InputError


@pytest.mark.parametrize("n_workers", first_of([1, 0, 2]))
def test_importance_weights_are_exactly_one_while_nothing_was_learnt(n_workers: int) -> None:
    """Aligned as they should be: asked again for what it saw, the actor says the same bits."""
    torch.manual_seed(0)
    actor = Recurrent(4, 2)
    with multi.rollout(
        lambda: gymnasium.make("CartPole-v1"), actor, 30, 2, 4, 4, 1, workers=n_workers, seed=0
    ) as it:
        for _, batch in zip(range(4), it, strict=False):
            with torch.no_grad():
                hx, logits = batch.hx, []
                for t in range(30):
                    inputs = [part[t : t + 1] for part in batch.inputs()]
                    _, hx, info = actor.step(*inputs, hx=hx)
                    logits.append(info["logits"])
            actions = batch.state.act[..., None]
            log_pi = torch.cat(logits).gather(-1, actions)
            log_mu = batch.actor["logits"].gather(-1, actions)
            rho = (log_pi - log_mu).exp()
            assert (rho == 1).all()
            # One call for the whole fragment rounds differently, and not more than that.
            _, _, info = actor(*batch.inputs(), hx=batch.hx)
            log_pi = info["logits"].gather(-1, actions)
            assert ((log_pi - log_mu).exp() - 1).abs().max() < 1e-5
    # Paired with the next action, as in that example, they are not.
    off = batch.actor["logits"][:-1].gather(-1, batch.state.act[1:, :, None])
    assert not torch.equal(off, log_mu[1:])


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
