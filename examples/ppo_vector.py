"""PPO on a vectorised environment, in one file.

    python examples/ppo_vector.py                                  # CartPole, seed 0
    python examples/ppo_vector.py --env HalfCheetah-v5 --workers 2 --steps 1000000 --rate 3e-4

Every update collects 128 steps of each environment. Then it makes actions more likely that turned
out better than expected, but changes their probabilities only a little at a time. (J. Schulman et
al., "Proximal policy optimization algorithms", 2017; the settings are those of CleanRL, S. Huang et
al., JMLR 2022, with a higher learning rate.)

The autoreset mode is Gymnasium's "NextStep": after the last step of an episode, the next step is
the reset. The reset ignores its action, so nothing is learned from it. The observation before the
reset is the last one of the episode; the critic's value of it is used if a time limit has cut off
the episode.
"""

import argparse
import time

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import vector as wrappers
from torch import nn
from torch.distributions import Categorical, Independent, Normal

import plangym_like

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="CartPole-v1", help="with actions in a Discrete or Box space")
parser.add_argument("--envs", type=int, default=8, help="environments stepped together")
parser.add_argument("--workers", type=int, default=1, help="processes that may step them")
parser.add_argument("--steps", type=int, default=100_000, help="in all environments together")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--horizon", type=int, default=128, help="steps of each environment per update")
parser.add_argument("--epochs", type=int, default=4, help="passes over the steps of an update")
parser.add_argument("--minibatches", type=int, default=4, help="in each pass")
parser.add_argument("--rate", type=float, default=1e-3, help="learning rate; it falls to 0")
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--trace", type=float, default=0.95, help="lambda of the advantages")
parser.add_argument("--clip", type=float, default=0.2, help="limit of the change of probabilities")
args = parser.parse_args()
torch.set_num_threads(1)  # a small network is faster on one thread
torch.manual_seed(args.seed)


def network(num_inputs, num_outputs, scale):
    """Return a network with two hidden layers and outputs of this initial scale."""
    layers = [nn.Linear(num_inputs, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """A policy and a critic."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.is_discrete = isinstance(action_space, Discrete)
        num_outputs = int(action_space.n) if self.is_discrete else action_space.shape[0]
        self.policy = network(observation_space.shape[0], num_outputs, 0.01)
        self.critic = network(observation_space.shape[0], 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_outputs))

    def choices(self, obs):
        """Return the distribution of actions."""
        if self.is_discrete:
            return Categorical(logits=self.policy(obs))
        return Independent(Normal(self.policy(obs), self.log_std.exp()), 1)

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


def collect(envs, agent, obs, was_reset):
    """Step all environments `horizon` times; return the steps, and the current observations.

    `was_reset` is true where the previous step ended an episode, so that this step is a reset.
    """
    rows = []
    for _ in range(args.horizon):
        tensor = torch.as_tensor(obs, dtype=torch.float32)
        with torch.no_grad():
            choices = agent.choices(tensor)
            actions = choices.sample()
            row = [tensor, actions, choices.log_prob(actions), agent.value(tensor)]
        obs, rewards, terminated, truncated, _ = envs.step(actions.numpy())
        ended = terminated | truncated
        row += map(torch.as_tensor, (rewards.astype(np.float32), terminated, ended, ~was_reset))
        rows.append(row)
        was_reset = ended
    return list(map(torch.stack, zip(*rows, strict=True))), obs, was_reset


def advantages_of(rewards, values, last_values, terminated, ended):
    """Return generalised advantage estimates ``(horizon, envs)``."""
    advantages, following = torch.zeros_like(rewards), torch.zeros_like(last_values)
    next_values = last_values
    for t in reversed(range(len(rewards))):
        # An episode that was only truncated would have continued: its last observation has a value.
        goal = rewards[t] + args.discount * next_values * ~terminated[t]
        following = goal - values[t] + args.discount * args.trace * following * ~ended[t]
        advantages[t], next_values = following, values[t]
    return advantages


def update(agent, optimizer, obs, actions, log_probs, advantages, returns):
    """Improve policy and critic in a few passes over the collected steps."""
    for _ in range(args.epochs):
        for chosen in torch.randperm(len(obs)).chunk(args.minibatches):
            choices = agent.choices(obs[chosen])
            ratio = (choices.log_prob(actions[chosen]) - log_probs[chosen]).exp()
            scaled = advantages[chosen]
            scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.min(ratio * scaled, clipped * scaled).mean()
            value_loss = (agent.value(obs[chosen]) - returns[chosen]).square().mean()
            loss = policy_loss + 0.25 * value_loss - 0.01 * choices.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


envs = plangym_like.make_vec(args.env, args.envs, n_workers=args.workers)
envs = recorded = wrappers.RecordEpisodeStatistics(envs)
# Gradients of policy and critic are clipped together; large rewards would shrink the policy's.
envs = wrappers.NormalizeReward(wrappers.NormalizeObservation(envs), gamma=args.discount)
if isinstance(envs.single_action_space, Box):
    envs = wrappers.ClipAction(envs)
agent = Agent(envs.single_observation_space, envs.single_action_space)
optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
obs, _ = envs.reset(seed=args.seed)
was_reset, begun = np.zeros(args.envs, bool), time.perf_counter()
num_updates = max(1, args.steps // (args.envs * args.horizon))
for number in range(1, num_updates + 1):
    optimizer.param_groups[0]["lr"] = args.rate * (1 - (number - 1) / num_updates)
    collected, obs, was_reset = collect(envs, agent, obs, was_reset)
    old_obs, actions, log_probs, values, rewards, terminated, ended, valid = collected
    with torch.no_grad():
        last_values = agent.value(torch.as_tensor(obs, dtype=torch.float32))
    advantages = advantages_of(rewards, values, last_values, terminated, ended)
    batch = old_obs, actions, log_probs, advantages, advantages + values
    update(agent, optimizer, *(each[valid] for each in batch))
    if number % 10 == 0 or number == num_updates:
        steps = number * args.envs * args.horizon
        score = np.mean(recorded.return_queue) if recorded.return_queue else float("nan")
        print(
            f"{steps:,} steps: mean return of the last {len(recorded.return_queue)} episodes "
            f"{score:.1f} ({steps / (time.perf_counter() - begun):,.0f} steps/s)",
            flush=True,
        )
envs.close()
