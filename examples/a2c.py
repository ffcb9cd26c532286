"""A2C: advantage actor-critic on fragments that many workers collect.

    python examples/a2c.py                                        # CartPole, seed 0
    python examples/a2c.py --seeds 0 1 2 3 4 --out learn/a2c.png  # five curves in one figure

Every update uses one fragment: 51 steps of 16 environments, which four of the eight actors collect.
Advantages are generalised advantage estimates; if an episode was cut off by its time limit, the
critic's estimate for its final observation replaces the missing rewards. With ``ordered=True`` and
``max_lag=0``, a seed gives the same result every time. (V. Mnih et al., "Asynchronous methods for
deep reinforcement learning", ICML 2016.)
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from learner_spaces import sizes_of

from plangym_like.batchers.returns import pyt_gae
from plangym_like.batchers.rollout import BaseActorModule, Fragment, evaluate, multi, multinomial


class Actor(BaseActorModule):
    """A policy and a critic, each with one hidden layer of 64 units."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        nn = torch.nn
        self.policy = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, num_actions)
        )
        self.critic = nn.Sequential(nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        logits = self.policy(obs).log_softmax(-1)
        actions = multinomial(logits.exp()) if self.training else logits.argmax(-1)
        return actions, (), {"value": self.critic(obs).squeeze(-1), "logits": logits}


def a2c_loss(batch: Fragment, actor: Actor, gamma: float, trace: float) -> torch.Tensor:
    """Return the loss of policy and critic, less a little entropy."""
    state = batch.state
    advantage = pyt_gae(
        # An episode that was cut off would have continued: add the critic's estimate of the rest.
        batch.rewards(gamma),
        state.fin,
        batch.actor["value"],
        gamma=gamma,
        C=trace,
        bootstrap=batch.bootstrap,
    )
    _, _, info = actor(*batch.inputs(), hx=batch.hx)
    log_pi = info["logits"].gather(-1, state.act.unsqueeze(-1)).squeeze(-1)
    entropy = -(info["logits"].exp() * info["logits"]).sum(-1).mean()
    # When the policy is good, advantages are small and mostly noise, so do not scale them up.
    scale = advantage.std().clamp(min=1.0)
    policy_loss = -(log_pi * (advantage - advantage.mean()) / scale).mean()
    returns = advantage + batch.actor["value"]
    value_loss = torch.nn.functional.smooth_l1_loss(info["value"], returns)
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


def score(actor: Actor, name: str, num_episodes: int, seed: int) -> float:
    """Return the mean return of greedy episodes."""
    envs = [gymnasium.make(name) for _ in range(num_episodes)]
    seeds = range(1_000 * seed, 1_000 * seed + num_episodes)
    actor.eval()
    rewards = evaluate(envs, actor, seeds=seeds)
    actor.train()
    return float(rewards.sum(0).mean())


def learn(args: argparse.Namespace, sizes: tuple[int, int], seed: int) -> list[tuple[int, float]]:
    """Train until the score is good; return (steps, score) pairs."""
    torch.manual_seed(seed)
    actor = Actor(*sizes)
    optimizer = torch.optim.Adam(actor.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, args.updates)
    curve = [(0, score(actor, args.env, 16, seed))]
    end = time.perf_counter() + args.seconds
    with multi.rollout(
        lambda: gymnasium.make(args.env),
        actor,
        n_steps=51,
        n_actors=8,
        n_per_actor=4,
        n_buffers=16,
        n_per_batch=4,
        seed=seed,
        ordered=True,
        max_lag=0,
    ) as batches:
        for update, batch in enumerate(batches, 1):
            optimizer.zero_grad()
            a2c_loss(batch, actor, gamma=0.99, trace=0.95).backward()
            for part in (actor.policy, actor.critic):
                torch.nn.utils.clip_grad_norm_(part.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            if update % 25 == 0:
                curve.append((batches.stats.steps, score(actor, args.env, 16, seed + update)))
                good = curve[-1][1] >= args.enough
                # Sixteen good episodes may be luck.
                if good and score(actor, args.env, 50, seed + update + 5000) >= args.enough:
                    break
                if time.perf_counter() > end:
                    break
    curve.append((batches.stats.steps, score(actor, args.env, 100, seed + 9000)))
    return curve


def draw(curves: dict[int, list[tuple[int, float]]], args: argparse.Namespace) -> None:
    """Write the learning curves as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for seed, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=f"seed {seed}", linewidth=1.2)
    axes.axhline(args.goal, color="grey", linestyle=":", label=f"goal, {args.goal:g}")
    axes.set(xlabel="steps", ylabel="mean return of greedy episodes", title=f"A2C on {args.env}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120, metadata={"Software": None})
    plt.close(figure)


def main() -> int:
    """Read the command line, learn, draw; return 1 if a seed did not reach the goal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--goal", type=float, default=195.0, help="required return in the end")
    parser.add_argument("--enough", type=float, default=450.0, help="mean return to stop at")
    parser.add_argument("--seconds", type=float, default=150.0, help="at most, for each seed")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--updates", type=int, default=1000, help="until lr is a fifth")
    parser.add_argument("--out", type=Path, default=Path("learn/a2c.png"))
    args = parser.parse_args()
    sizes = sizes_of(parser, args.env)
    torch.set_num_threads(1)
    curves, missed = {}, []
    for seed in args.seeds:
        begin = time.perf_counter()
        curves[seed] = learn(args, sizes, seed)
        steps, result = curves[seed][-1]
        print(
            f"seed {seed}: mean evaluated return {result:.1f} after {steps:,} steps and "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        if result < args.goal:
            missed.append(seed)
    draw(curves, args)
    print(f"wrote {args.out}")
    if missed:
        print(f"seeds {missed} did not reach {args.goal:g}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
