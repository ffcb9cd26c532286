"""DQN on CartPole, learning from a replay buffer, with agents on a workspace.

    python examples/dqn.py --seeds 0 1 2 3 4

Repeat: run 16 environments for 16 steps, put the transitions into the buffer, and fit the values of
actions to the rewards and next states of sampled transitions. (V. Mnih et al., "Human-level control
through deep reinforcement learning", Nature 2015; the online network chooses the next action, as in
H. van Hasselt et al., AAAI 2016.) From time to time, the greedy policy plays 20 new episodes, and
the best policy is kept; in the end it plays 100 more.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from learner_spaces import sizes_of
from torch import nn

from plangym_like.batchers.workspaces import (
    Agent,
    Agents,
    ParallelGymAgent,
    ReplayBuffer,
    TemporalAgent,
    Workspace,
    make_env,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="CartPole-v1", help="vector observations, discrete actions")
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--seconds", type=float, default=170.0, help="at most, for each seed")
parser.add_argument("--goal", type=float, default=195.0, help="mean return that must be reached")
parser.add_argument("--enough", type=float, default=475.0, help="mean return to stop learning at")
parser.add_argument("--envs", type=int, default=16)
parser.add_argument("--epoch", type=int, default=16, help="steps of each environment")
parser.add_argument("--updates", type=int, default=64, help="updates in an epoch")
parser.add_argument("--batch", type=int, default=128, help="transitions in an update")
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
parser.add_argument("--explore", type=int, default=10_000, help="steps until 5 %% are random")
parser.add_argument("--out", type=Path, default=Path("dqn.png"), help="the learning curves")
args = parser.parse_args()
sizes_of(parser, args.env)
torch.set_num_threads(1)  # a small network is faster on one thread


class Values(Agent):
    """Writes the value of each action."""

    def __init__(self, obs_size, num_actions):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(obs_size, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, num_actions),
        )  # fmt: skip

    def forward(self, t, **kwargs):
        self.set(("values", t), self.net(self.get(("env/env_obs", t))))


class Choice(Agent):
    """Takes the best action, or with probability `chance` a random one."""

    def forward(self, t, chance=0.0, **kwargs):
        values = self.get(("values", t))
        action, any_action = values.argmax(-1), torch.randint(values.shape[-1], values.shape[:-1])
        self.set(("action", t), torch.where(torch.rand(action.shape) < chance, any_action, action))


def play(agent, workspace=None, **kwargs):
    workspace = Workspace() if workspace is None else workspace
    with torch.no_grad():
        agent(workspace, **kwargs)
    return workspace


def judge(agent):
    """Return the mean return of one greedy episode in each environment."""
    return float(play(agent, stop_variable="env/done")["env/cumulated_reward"][-1].mean())


def loss_of(values, target, batch):
    """Fit the values of the actions taken to the reward plus the value of the next state."""
    action, reward, terminated = batch["action", "env/reward", "env/terminated"]
    values(batch, t=0, n_steps=2)
    online = batch["values"]
    with torch.no_grad():
        target(batch, t=1, n_steps=1)
        following = batch.get("values", 1).gather(-1, online[1].argmax(-1, keepdim=True))[:, 0]
        # An episode that was only cut off would have continued.
        goal = reward[1] + args.discount * following * ~terminated[1]
    return nn.functional.smooth_l1_loss(online[0].gather(-1, action[0][:, None])[:, 0], goal)


def learn(seed):
    """Return (steps, mean return) pairs; the last one is that of the best policy in the end."""
    torch.manual_seed(seed)
    end = time.perf_counter() + args.seconds
    env = ParallelGymAgent(partial(make_env, args.env, autoreset=True), args.envs)
    judged = ParallelGymAgent(partial(make_env, args.env), 20)
    values = Values(*env.get_obs_and_actions_sizes())
    learner = TemporalAgent(Agents(env, values, Choice())).seed(seed)
    player = TemporalAgent(Agents(judged, values, Choice())).seed(seed + 1_000_000)
    target = values.clone()
    fit, aim = TemporalAgent(values), TemporalAgent(target)
    optimizer = torch.optim.Adam(values.parameters(), lr=args.rate)
    buffer, workspace = ReplayBuffer(100_000), Workspace()
    curve, steps, best, kept = [], 0, 0.0, values.state_dict()
    while time.perf_counter() < end and best < args.enough:
        chance = max(0.05, 1 - steps / args.explore)
        if steps:
            workspace.copy_n_last_steps(1)
        play(learner, workspace, t=1 if steps else 0, n_steps=args.epoch, chance=chance)
        buffer.put(workspace.get_transitions())
        steps += args.envs * args.epoch
        if buffer.size() < 1000:
            continue
        for _ in range(args.updates):
            optimizer.zero_grad()
            loss_of(fit, aim, buffer.get_shuffled(args.batch)).backward()
            nn.utils.clip_grad_norm_(values.parameters(), 10.0)
            optimizer.step()
        target.load_state_dict(values.state_dict())
        if steps % (8 * args.envs * args.epoch) == 0:
            curve.append((steps, judge(player)))
            if curve[-1][1] >= best:
                best, kept = curve[-1][1], values.clone().state_dict()
    values.load_state_dict(kept)
    curve.append((steps, sum(judge(player) for _ in range(5)) / 5))
    return curve


def draw(curves):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for seed, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=f"seed {seed}", linewidth=1.2)
    axes.axhline(args.goal, color="grey", linestyle=":", label=f"goal, {args.goal:g}")
    axes.set(xlabel="steps", ylabel="mean return of greedy episodes", title=f"DQN on {args.env}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120)


curves, missed = {}, []
for seed in args.seeds:
    begin = time.perf_counter()
    curves[seed] = learn(seed)
    steps, score = curves[seed][-1]
    print(
        f"seed {seed}: mean evaluated return {score:.1f} after {steps:,} steps "
        f"and {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    if score < args.goal:
        missed.append(seed)
draw(curves)
print(f"wrote {args.out}")
raise SystemExit(f"seeds {missed} did not reach {args.goal:g}" if missed else 0)
