"""REINFORCE on CartPole or another environment, learning from whole episodes.

    python examples/reinforce.py --seeds 0 1 2 3 4

Repeat: play a batch of whole episodes with the current policy, then make each action more likely in
proportion to how much better the rest of its episode was than the average at that step. (R.
Williams, "Simple statistical gradient-following algorithms", 1992; the average is the batch's
mean.) The limit of 500 steps is part of the task here: there is no critic that could estimate the
rewards after it, and an episode is compared with others at the same step, which have the same
number of steps left. In the end, the policy is judged by the mean return of 100 new episodes in
which it always takes the likeliest action.
"""

import argparse
import time
from pathlib import Path

import gymnasium
import torch
from learner_spaces import sizes_of
from torch import nn

from plangym_like.batchers.episodes import Agent, DictTensor, EpisodeBatcher, GymEnv

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="CartPole-v1", help="vector observations, discrete actions")
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--seconds", type=float, default=170.0, help="at most, for each seed")
parser.add_argument("--goal", type=float, default=195.0, help="mean return that must be reached")
parser.add_argument("--enough", type=float, default=450.0, help="mean return to stop learning at")
parser.add_argument("--processes", type=int, default=2)
parser.add_argument("--episodes", type=int, default=32, help="episodes in a batch")
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
parser.add_argument("--out", type=Path, default=Path("reinforce.png"), help="the learning curves")
args = parser.parse_args()
num_inputs, num_actions = sizes_of(parser, args.env)


class Policy(Agent, nn.Module):
    """Draws actions, or takes the likeliest where `explore` is false."""

    def __init__(self):
        nn.Module.__init__(self)
        self.logits = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, num_actions)
        )

    def __call__(self, state, observation, agent_info=None, history=None):
        logits = self.logits(observation["frame"])
        drawn = torch.distributions.Categorical(logits=logits).sample()
        action = torch.where(agent_info["explore"], drawn, logits.argmax(-1))
        return DictTensor(), DictTensor({"action": action}), DictTensor()


def create_env(seed):
    return GymEnv([gymnasium.make(args.env) for _ in range(16)], seed)


def play(batcher, policy, n_episodes, explore):
    """Return `n_episodes` episodes played by the current policy."""
    batcher.update(policy.state_dict())
    batcher.execute(
        n_episodes, agent_info=DictTensor({"explore": torch.full((n_episodes,), explore)})
    )
    return batcher.get()


def returns_to_go(rewards):
    """Return the discounted sum of the rewards from each step on: [B, T] like `rewards`."""
    returns = rewards.clone()
    for t in range(rewards.shape[1] - 2, -1, -1):
        returns[:, t] += args.discount * returns[:, t + 1]
    return returns


def loss_of(policy, episodes):
    mask = episodes.mask()
    returns = returns_to_go(episodes["_reward"])
    usual = (returns * mask).sum(0) / mask.sum(0)
    advantages = (returns - usual)[mask]
    advantages = advantages / (advantages.std() + 1e-6)
    # Only the steps that took place are used: the mask drops the padding.
    logits = policy.logits(episodes["frame"][mask])
    log_probs = torch.distributions.Categorical(logits=logits).log_prob(episodes["action"][mask])
    return -(log_probs * advantages).mean()


def learn(seed):
    """Return (steps, mean return) pairs of all batches, and the pair of the policy in the end."""
    torch.manual_seed(seed)
    policy, curve, steps, end = Policy(), [], 0, time.perf_counter() + args.seconds
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.rate)
    batcher = EpisodeBatcher(
        n_timesteps=500,
        n_slots=args.episodes,
        n_threads=args.processes,
        seeds=[1000 * seed, 1000 * seed + 500],
        create_agent=Policy,
        agent_args={},
        create_env=create_env,
        env_args={},
    )
    with batcher:
        while True:
            episodes = play(batcher, policy, args.episodes, True)
            steps += int(episodes.lengths.sum())
            curve.append((steps, float(episodes["_reward"].sum(1).mean())))
            # One good batch may be luck.
            learned = len(curve) > 2 and min(score for _, score in curve[-3:]) > args.enough
            if learned or time.perf_counter() > end:
                break
            optimizer.zero_grad()
            loss_of(policy, episodes).backward()
            optimizer.step()
        score = float(play(batcher, policy, 100, False)["_reward"].sum(1).mean())
        return curve, (steps, score)


def draw(curves, results):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for seed, curve in curves.items():
        (line,) = axes.plot(*zip(*curve, strict=True), label=f"seed {seed}", linewidth=1.2)
        label = "in the end, likeliest actions" if seed == args.seeds[-1] else None
        axes.plot(*results[seed], "o", color=line.get_color(), label=label)
    axes.axhline(args.goal, color="grey", linestyle=":", label=f"goal, {args.goal:g}")
    axes.set(xlabel="steps", ylabel="mean return of a batch", title=f"REINFORCE on {args.env}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120)


curves, results, missed = {}, {}, []
for seed in args.seeds:
    begin = time.perf_counter()
    curves[seed], results[seed] = learn(seed)
    steps, score = results[seed]
    print(
        f"seed {seed}: mean evaluated return {score:.1f} after {len(curves[seed])} batches, "
        f"{steps:,} steps and {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    if score < args.goal:
        missed.append(seed)
draw(curves, results)
print(f"wrote {args.out}")
raise SystemExit(f"seeds {missed} did not reach {args.goal:g}" if missed else 0)
