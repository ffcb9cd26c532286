"""UCT: Monte Carlo tree search over state rows, many leaves at a time.

    python examples/uct.py CartPole-v1 --steps 200
    python examples/uct.py ALE/MsPacman-v5 --hold 4 --rounds 2 --depth 10

A node of the tree holds a state row. One round of the search walks down the tree many times,
always to the child with the best ``value + explore * sqrt(log(visits of node) / visits of
child)``. Counting the visit on the way down, before its value is known, keeps the walks of one
round apart. Then one `step_batch` tries every action in every leaf that was found, and one
`rollout_batch` plays on from there at random. (L. Kocsis and C. Szepesvari, "Bandit based
Monte-Carlo planning", ECML 2006.)
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any

import numpy as np
from tqdm import trange

import plangym_like


class Node:
    """A state, the reward on the way into it, and the returns that were seen from there on."""

    def __init__(self, state: np.ndarray, reward: float, over: bool, beyond: float) -> None:
        self.state, self.reward, self.over = state, reward, over
        self.visits, self.total = 1, reward + beyond
        self.children: list[Node] = []


class Tree:
    """Nodes below a root, and the range of the returns seen in them."""

    def __init__(self, root: Node, explore: float) -> None:
        self.root, self.explore = root, explore
        self.low, self.high = np.inf, -np.inf

    def walk(self) -> list[Node]:
        """Return the nodes from the root down to a leaf, and count the visit in each."""
        path = [self.root]
        scale = self.explore * max(self.high - self.low, 1e-9)
        while path[-1].children:
            log = math.log(path[-1].visits)
            path.append(
                max(
                    path[-1].children,
                    key=lambda child: (
                        child.total / child.visits + scale * math.sqrt(log / child.visits)
                    ),
                )
            )
        for node in path:
            node.visits += 1
        return path

    def back_up(self, path: list[Node]) -> None:
        """Tell every node on the path what the leaf at its end was found to be worth."""
        seen = [child.total / child.visits for child in path[-1].children]
        value = float(np.mean(seen)) if seen else 0.0  # an ended game leads to nothing
        for node in reversed(path):
            value += node.reward
            node.total += value
            self.low, self.high = min(self.low, value), max(self.high, value)


def search(env: Any, tree: Tree, rng: np.random.Generator, args: argparse.Namespace) -> int:
    """Grow the tree, and return the action that was tried most at its root."""
    num_actions = int(env.action_space.n)
    for _ in range(args.rounds):
        paths = [tree.walk() for _ in range(args.leaves)]
        leaves = list({id(path[-1]): path[-1] for path in paths if not path[-1].over}.values())
        if leaves:
            states = np.repeat([leaf.state for leaf in leaves], num_actions, axis=0)
            actions = np.tile(np.arange(num_actions), len(leaves))
            step = env.step_batch(actions, states, dt=args.hold)
            over = step.terminateds | step.truncateds
            plans = rng.integers(num_actions, size=(len(actions), args.depth))
            rollout = env.rollout_batch(plans, step.states, dt=args.hold)
            beyond = np.where(over, 0.0, rollout.rewards.sum(axis=1))
            for index, leaf in enumerate(leaves):
                leaf.children = [
                    Node(step.states[row].copy(), step.rewards[row], over[row], beyond[row])
                    for row in range(index * num_actions, (index + 1) * num_actions)
                ]
        for path in paths:
            tree.back_up(path)
    return int(np.argmax([child.visits for child in tree.root.children]))


def main() -> None:
    """Play one game by search, and as many steps by chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="CartPole-v1", help="an id with discrete actions")
    parser.add_argument("--steps", type=int, default=200, help="play at most so many actions")
    parser.add_argument("--seconds", type=float, default=60.0, help="play at most so long")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of search for one action")
    parser.add_argument("--leaves", type=int, default=16, help="walks down the tree in a round")
    parser.add_argument("--depth", type=int, default=30, help="actions played at random beyond it")
    parser.add_argument("--hold", type=int, default=1, help="steps that one action lasts")
    parser.add_argument("--explore", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    kwargs = {"obs_type": "ram"} if args.env.startswith("ALE/") else {}
    with plangym_like.make(args.env, n_workers=os.cpu_count(), **kwargs) as env:
        start = env.reset(seed=args.seed).state
        tree = Tree(Node(start, 0.0, False, 0.0), args.explore)
        score, played = 0.0, 0
        end = time.perf_counter() + args.seconds
        with trange(args.steps, desc="UCT") as bar:
            for played in bar:  # noqa: B007 - the random player plays as long
                action = search(env, tree, rng, args)
                tree.root = tree.root.children[action]  # with all that is known below it
                score += tree.root.reward
                bar.set_postfix_str(f"score {score:,.6g}, {tree.root.visits:,} visits kept")
                if tree.root.over or time.perf_counter() > end:
                    break
        plans = rng.integers(env.action_space.n, size=(64, played + 1))
        chance = env.rollout_batch(plans, start, dt=args.hold).rewards.sum(axis=1)
    print(f"score of UCT:  {score:,.6g} in {played + 1} actions of {args.hold} steps")
    print(f"random player: {chance.mean():,.6g} in as many, mean of {len(chance)} games")


if __name__ == "__main__":
    main()
