"""Gumbel MuZero: mctx's search, in a real simulator instead of a learned model.

    pip install 'plangym_like[jax]'
    python examples/gumbel_muzero.py CartPole-v1 --steps 200
    python examples/gumbel_muzero.py ALE/MsPacman-v5 --dt 4 --games 16 --steps 50

mctx builds one search tree for each game, all of them in one compiled program, and asks for one
transition in each tree at a time. The nodes of its trees hold indices into an array of state rows
on the host: a callback looks up the rows, and steps them all with one ``step_batch``. There is no
network: all actions are equally likely at first, and the value of a new node is the sum of rewards
of a random rollout.

The search is that of Danihelka et al., "Policy improvement by planning with Gumbel", ICLR 2022.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

import plangym_like

try:
    import jax
    import jax.numpy as jnp
    import mctx
    from jax.experimental import io_callback
except ImportError as error:
    raise SystemExit(f"{error}; install it with: pip install 'plangym_like[jax]'") from error

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Rows = NDArray[np.uint8]


class Nodes:
    """The states of all nodes of `games` search trees; a node is an index into `states`.

    Parameters
    ----------
    env : PlanEnv
        With discrete actions.
    games, simulations : int
        How many trees there are, and how many nodes a search adds to each of them.
    dt, rollout : int
        How long an action lasts, and how many random actions a rollout has.
    discount : float
        The factor by which a reward is multiplied for each earlier action.
    """

    def __init__(
        self,
        env: plangym_like.PlanEnv,
        games: int,
        simulations: int,
        dt: int,
        rollout: int,
        discount: float,
        seed: int,
    ) -> None:
        self.env, self.dt, self.discount = env, dt, discount
        self.num_actions = int(env.action_space.n)  # type: ignore[attr-defined]
        self.states = np.zeros((games * (simulations + 1), env.state_nbytes), np.uint8)
        self.ended = np.zeros(len(self.states), bool)
        self.rng = np.random.default_rng(seed)
        self.weights = discount ** np.arange(rollout)
        self.count = 0

    def start(self, states: Rows, ended: NDArray[np.bool_]) -> tuple[Integers, Floats]:
        """Forget all nodes and add `states` as roots; return their indices and values."""
        self.count = 0
        numbers = self._add(states, ended)
        return numbers, self._values(numbers)

    def expand(
        self, parents: Integers, actions: Integers
    ) -> tuple[Integers, Floats, Floats, Floats]:
        """Step one node of each tree; return the new nodes, rewards, discounts and values."""
        parents = np.asarray(parents)
        states, rewards, ended = self.step(self.states[parents], self.ended[parents], actions)
        children = self._add(states, ended)
        discounts = np.where(ended, 0, self.discount).astype(np.float32)
        return children, rewards, discounts, self._values(children)

    def step(
        self, states: Rows, ended: NDArray[np.bool_], actions: Integers
    ) -> tuple[Rows, Floats, NDArray[np.bool_]]:
        """Step the games that have not ended; return all states, rewards and ends."""
        states, ended = states.copy(), ended.copy()
        rewards = np.zeros(len(ended), np.float32)
        if (alive := np.flatnonzero(~ended)).size:
            batch = self.env.step_batch(np.asarray(actions)[alive], states[alive], dt=self.dt)
            states[alive], rewards[alive] = batch.states, batch.rewards
            ended[alive] = batch.terminateds | batch.truncateds
        return states, rewards, ended

    def _add(self, states: Rows, ended: NDArray[np.bool_]) -> Integers:
        numbers = np.arange(self.count, self.count + len(ended), dtype=np.int32)
        self.states[numbers], self.ended[numbers] = states, ended
        self.count += len(ended)
        return numbers

    def _values(self, numbers: Integers) -> Floats:
        values = np.zeros(len(numbers), np.float32)
        if (alive := np.flatnonzero(~self.ended[numbers])).size:
            shape = len(alive), len(self.weights)
            plans = self.rng.integers(self.num_actions, size=shape)
            rollout = self.env.rollout_batch(plans, self.states[numbers[alive]], dt=self.dt)
            values[alive] = rollout.rewards @ self.weights
        return values


def searcher(nodes: Nodes, games: int, simulations: int, considered: int) -> Any:
    """Return a compiled function that searches from the nodes of all roots."""
    number = jax.ShapeDtypeStruct((games,), jnp.int32)
    value = jax.ShapeDtypeStruct((games,), jnp.float32)
    uniform = jnp.zeros((games, nodes.num_actions))

    def recurrent(_: Any, __: Any, actions: Any, parents: Any) -> tuple[Any, Any]:
        # Each call adds nodes, so JAX must not omit, repeat or reorder calls.
        children, rewards, discounts, values = io_callback(
            nodes.expand, (number, value, value, value), parents, actions, ordered=True
        )
        output = mctx.RecurrentFnOutput(
            reward=rewards, discount=discounts, prior_logits=uniform, value=values
        )
        return output, children

    @jax.jit
    def search(key: Any, roots: Any, values: Any) -> Any:
        root = mctx.RootFnOutput(prior_logits=uniform, value=values, embedding=roots)
        policy = mctx.gumbel_muzero_policy(
            params=(),
            rng_key=key,
            root=root,
            recurrent_fn=recurrent,
            num_simulations=simulations,
            max_num_considered_actions=considered,
        )
        return policy.action

    return search


def main() -> None:
    """Play several games with search, and the same number at random."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", nargs="?", default="CartPole-v1", help="an id with discrete actions")
    parser.add_argument("--games", type=int, default=8, help="games that are played at once")
    parser.add_argument("--steps", type=int, default=200, help="the largest number of actions")
    parser.add_argument("--simulations", type=int, default=32, help="new nodes for each action")
    parser.add_argument("--considered", type=int, default=16, help="most actions tried at the root")
    parser.add_argument("--rollout", type=int, default=20, help="random actions after a new node")
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--dt", type=int, default=1, help="steps that one action lasts")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    kwargs: dict[str, Any] = {"obs_type": "ram"} if args.env.startswith("ALE/") else {}
    with plangym_like.make(args.env, n_workers=os.cpu_count(), **kwargs) as env:
        if not isinstance(env.action_space, Discrete):
            parser.error(f"{args.env} has no discrete actions, but {env.action_space}")
        nodes = Nodes(
            env, args.games, args.simulations, args.dt, args.rollout, args.discount, args.seed
        )
        search = searcher(nodes, args.games, args.simulations, args.considered)
        first = np.stack([env.reset(seed=args.seed + game).state for game in range(args.games)])
        states, ended = first.copy(), np.zeros(args.games, bool)
        scores = np.zeros(args.games)
        for key in jax.random.split(jax.random.key(args.seed), args.steps):
            roots, values = nodes.start(states, ended)
            actions = search(key, roots, values)
            states, rewards, ended = nodes.step(states, ended, actions)
            scores += rewards
            if ended.all():
                break
        plans = nodes.rng.integers(nodes.num_actions, size=(args.games, args.steps))
        by_chance = env.rollout_batch(plans, first, dt=args.dt).rewards.sum(axis=1)
        print(f"score of the search: {scores.mean():,.6g}, mean of {args.games} games")
        print(f"random player:       {by_chance.mean():,.6g} from the same states")


if __name__ == "__main__":
    main()
