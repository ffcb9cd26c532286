"""Losses written against rlplay's fragments, evaluation, and importance weights of exactly 1."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counting import Count, Follower, Policy, Recurrent

from plangym_like.batchers.returns import pyt_returns
from plangym_like.batchers.rollout import BaseActorModule, evaluate, multi, same, single
from plangym_like.errors import InputError


def _response(batch: Any, module: Any) -> Any:
    """Ask the actor as scripts for rlplay do, whose indices are off by one."""
    _, _, info = module(
        batch.state.obs[1:-1],
        batch.state.act[:-1],
        batch.state.rew[:-1],
        batch.state.fin[:-1],
        hx=batch.hx,
    )
    returns = pyt_returns(
        batch.state.rew, batch.state.fin, gamma=0.99, bootstrap=batch.bootstrap[0]
    )[1:]
    actions = batch.state.act[1:].unsqueeze(-1)
    log_pi = info["logits"].gather(-1, actions).squeeze(-1)
    log_mu = batch.actor["logits"].gather(-1, actions).squeeze(-1)
    rho = log_mu.sub_(log_pi.detach()).neg_().exp_().clamp_(max=1)
    return info, returns, log_pi, rho


def reinforce(batch: Any, module: Any) -> torch.Tensor:
    info, returns, log_pi, rho = _response(batch, module)
    score = log_pi.mul(returns - returns.mean(dim=0)).mul(rho).mean()
    entropy = info["logits"].exp().mul(info["logits"]).sum(dim=-1).neg().mean()
    return -(score + 1e-2 * entropy)


def a2c(batch: Any, module: Any) -> torch.Tensor:
    info, returns, log_pi, rho = _response(batch, module)
    advantage = returns - info["value"]
    value_score = torch.nn.functional.mse_loss(info["value"], returns).neg()
    policy_score = log_pi.mul(advantage.detach()).mul(rho).mean()
    return -(policy_score + 0.25 * value_score)


@pytest.mark.parametrize("loss_fn", [reinforce, a2c])
@pytest.mark.parametrize("recurrent", [False, True])
def test_losses_that_were_written_for_rlplay(loss_fn: Any, recurrent: bool) -> None:
    torch.manual_seed(0)
    actor: Any = Recurrent(4, 2) if recurrent else Policy()
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    with multi.rollout(
        lambda: gymnasium.make("CartPole-v1"), actor, 21, 2, 4, 4, 2, workers=1, seed=0
    ) as it:
        for _, batch in zip(range(3), it, strict=False):
            optimizer.zero_grad()
            loss = loss_fn(batch, actor)
            loss.backward()
            optimizer.step()
            assert torch.isfinite(loss)
        assert it.stats.version >= 2


@pytest.mark.parametrize("n_workers", [0, 1, 2])
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


def test_evaluation_gives_the_actor_what_a_rollout_does() -> None:
    torch.manual_seed(0)
    actor = Recurrent(4, 2).eval()
    envs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    rewards = evaluate(envs, actor, seeds=[1, 2, 3])
    with same.rollout(envs, actor, len(rewards), seed=[1, 2, 3], sticky=True) as it:
        fragment = next(it)
    assert torch.equal(torch.from_numpy(rewards), fragment.state.rew)


def test_evaluation_can_be_watched() -> None:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    seen = []
    original = env.unwrapped.render

    def render() -> Any:
        seen.append(original())
        return seen[-1]

    env.unwrapped.render = render  # type: ignore[method-assign]
    rewards = evaluate([env], Policy(), render=True, n_steps=5)
    assert len(seen) == len(rewards)
    with pytest.raises(InputError, match="one environment"):
        evaluate([env, env], Policy(), render=True)


def test_actors_leave_their_inputs_alone() -> None:
    actor = BaseActorModule()
    hx = (torch.ones(2, 3, 4), {"c": torch.ones(1, 3)})
    fresh = actor.reset(1, hx)
    assert all(bool((leaf == 1).all()) for leaf in (hx[0], hx[1]["c"]))
    assert fresh[0].sum(dim=(0, 2)).tolist() == [8, 0, 8]
    assert actor.reset([0, 2], hx)[1]["c"].tolist() == [[0, 1, 0]]
    assert actor.reset(slice(None), hx)[0].sum() == 0
    assert actor.reset(0, ()) == ()
    assert actor.reset(0, None) is None
    obs, act = torch.ones(1, 2, 1), torch.zeros(1, 2, dtype=torch.int64)
    gru = Recurrent()
    rew, fin = torch.ones(1, 2), torch.tensor([[True, False]])
    hx = gru.step(obs, act, rew, fin)[1]
    kept = hx.clone()
    gru.step(obs, act, rew, fin, hx=hx)
    assert torch.equal(hx, kept)
    assert gru.value(obs, act, rew, fin, hx=hx).shape == (1, 2)
    assert not gru.value(obs, act, rew, fin, hx=hx).requires_grad
    assert np.isfinite(gru.value(obs, act, rew, fin).numpy()).all()


class _Climber(Follower):
    """Finds its answer by following a gradient."""

    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        with torch.enable_grad():
            action = torch.zeros(obs.shape[:-1], requires_grad=True)
            loss = ((action - (obs[..., 0] % 4).float()) ** 2 * self.weight).sum()
            (slope,) = torch.autograd.grad(loss, action)
        return (-slope / 2).round().long().detach(), (), {}


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_actor_may_follow_gradients_itself(n_workers: int) -> None:
    with single.rollout(Count, _Climber(), 7, 2, workers=n_workers) as it:
        assert next(it).state.act[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]


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


def test_one_environment_is_not_two_lanes() -> None:
    for env in (Count(), gymnasium.make("CartPole-v1")):
        with pytest.raises(InputError, match="the same environment twice"):
            same.rollout([env, env], Follower())
        with pytest.raises(InputError, match="the same environment twice"):
            evaluate([env, env], Follower())
