"""AlphaZero: a network learns from the tree search that it guides.

    python examples/alphazero.py                                        # CartPole, seed 0
    python examples/alphazero.py --seeds 0 1 2 --out learn/alphazero.png

Every move of a game is the result of a search with `PUCT`: the network's policy is the prior, and
its value estimates the return after a leaf. The network then learns to predict the visits of the
searches and the returns of the games. The evaluation uses the network's policy alone, without a
search, in 100 games at once, with `TensorBatcher`. (D. Silver et al., "A general reinforcement
learning algorithm that masters chess, shogi and Go through self-play", Science 2018.)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learner_spaces import sizes_of

import plangym_like
from plangym_like.batchers.tensor_batcher import TensorBatcher
from plangym_like.planners import PUCT


class Network(torch.nn.Module):
    """A policy and a value on two shared layers."""

    def __init__(self, num_inputs: int, num_actions: int, scale: float) -> None:
        super().__init__()
        nn = torch.nn
        self.trunk = nn.Sequential(
            nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        )
        self.policy, self.value = nn.Linear(64, num_actions), nn.Linear(64, 1)
        self.scale = scale

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``(N, A)`` and values ``(N,)``."""
        hidden = self.trunk(obs.float())
        return self.policy(hidden), self.scale * self.value(hidden).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the priors and values that `PUCT` needs."""
        logits, values = self(torch.from_numpy(obs))
        return logits.softmax(-1).numpy(), values.numpy()


def self_play(planner: PUCT, args: argparse.Namespace, rng: np.random.Generator) -> list[Any]:
    """Play a game by search; return observations, visits and returns of its moves."""
    state, obs, _ = planner.env.reset(seed=int(rng.integers(2**31)))
    planner.observe = lambda _: obs[None]
    moves: list[tuple[Any, Any]] = []
    rewards, ended = [], False
    while not ended:
        plan = planner.plan(state, budget=args.simulations, seed=rng)
        policy = plan.info["visits"] / plan.info["visits"].sum()
        # At first, draw in proportion to the visits, so that games differ; later, take the best.
        index = rng.choice(len(policy), p=policy) if len(moves) < 30 else policy.argmax()
        moves.append((obs, policy))
        action = planner.actions[index]
        state, obs, reward, terminated, truncated, _ = planner.env.step(action, state=state)
        planner.advance()
        rewards.append(reward)
        ended = terminated or truncated
    # The search's value estimates the rewards that the time limit cut off.
    value, returns = 0.0 if terminated else plan.info["value"], []
    for reward in reversed(rewards):
        value = reward + args.discount * value
        returns.append(value)
    return [(*move, value) for move, value in zip(moves, reversed(returns), strict=True)]


def train(network: Network, optimizer: Any, moves: deque[Any], batches: int, rng: Any) -> None:
    """Fit the policy to the visits and the value to the returns of random moves."""
    columns = [torch.as_tensor(np.array(part)).float() for part in zip(*moves, strict=True)]
    for _ in range(batches):
        rows = rng.integers(len(moves), size=256)
        obs, policy, returns = (column[rows] for column in columns)
        logits, values = network(obs)
        policy_loss = torch.nn.functional.cross_entropy(logits, policy)
        value_loss = ((values - returns) / network.scale).square().mean()
        optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        optimizer.step()


@torch.no_grad()
def score(batcher: TensorBatcher, network: Network, seed: int, num_games: int = 100) -> float:
    """Return the mean return of the network's policy alone, without a search."""
    starts = [batcher.reset(seed=seed + game) for game in range(num_games)]
    states = torch.stack([start.state for start in starts])
    obs = torch.stack([start.obs for start in starts])
    returns, running = torch.zeros(num_games), torch.arange(num_games)
    while len(running):
        step = batcher.step_batch(network(obs)[0].argmax(-1), states)
        returns[running] += step.rewards.float()
        on = ~(step.terminateds | step.truncateds)
        states, obs, running = step.states[on], step.obs[on], running[on]
    return float(returns.mean())


def learn(args: argparse.Namespace, sizes: tuple[int, int], seed: int) -> list[tuple[int, float]]:
    """Play and train until the score is good; return (moves, score) pairs."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    end = time.perf_counter() + args.seconds
    with TensorBatcher(plangym_like.make(args.env, remove_time_limit=False)) as batcher:
        env, scale = batcher.env, 1 / (1 - args.discount)
        network = Network(*sizes, scale)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
        planner = PUCT(env, network.evaluate, discount=args.discount, noise=0.25)
        moves: deque[Any] = deque(maxlen=5_000)
        played, curve = 0, [(0, score(batcher, network, 1_000_000))]
        while time.perf_counter() < end and curve[-1][1] < args.enough:
            game = self_play(planner, args, rng)
            moves.extend(game)
            played += len(game)
            train(network, optimizer, moves, 20 + len(game) // 4, rng)
            curve.append((played, score(batcher, network, 1_000_000)))
        # Play new games: those whose score ended the training may have been lucky.
        curve.append((played, score(batcher, network, 2_000_000)))
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
    axes.set(
        xlabel="moves", ylabel="mean return of the policy alone", title=f"AlphaZero on {args.env}"
    )
    axes.legend(frameon=False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120, metadata={"Software": None})


def main() -> int:
    """Read the command line, learn, draw; return 1 if a seed did not reach the goal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="CartPole-v1", help="vector observation, discrete actions")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--goal", type=float, default=195.0, help="required return in the end")
    parser.add_argument("--enough", type=float, default=450.0, help="mean return to stop at")
    parser.add_argument("--seconds", type=float, default=180.0, help="at most, for each seed")
    parser.add_argument("--simulations", type=int, default=24, help="transitions for one move")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--out", type=Path, default=Path("learn/alphazero.png"))
    args = parser.parse_args()
    sizes = sizes_of(parser, args.env)
    torch.set_num_threads(1)
    curves, missed = {}, []
    for seed in args.seeds:
        begin = time.perf_counter()
        curves[seed] = learn(args, sizes, seed)
        (moves, result), took = curves[seed][-1], time.perf_counter() - begin
        said = f"mean evaluated return {result:.1f} after {moves:,} moves and {took:.0f} s"
        print(f"seed {seed}: {said}", flush=True)
        if result < args.goal:
            missed.append(seed)
    draw(curves, args)
    print(f"wrote {args.out}")
    if missed:
        print(f"seeds {missed} did not reach {args.goal:g}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
