"""A policy guides a search from the states of its own episodes.

    python examples/guided_search.py                    # CartPole, seed 0
    python examples/guided_search.py --steps 1024 --horizon 80

PPO of Stable-Baselines3 learns for a few seconds, which is too short to become good. Then some
episodes are played twice from the same initial states: first with the policy's preferred actions,
then with a search before every step. The search tries each action in the current state of every
episode, continues with the actions that the policy prefers, and adds the critic's estimate of the
rest. It takes the action with the best sum (G. Tesauro and G. Galperin, "On-line policy improvement
using Monte-Carlo search", NIPS 1996; one rollout for each action is enough if nothing is random).

`envs.get_states()` returns the current states, and one `step_batch` per step of the search steps
all branches at once, in an environment of its own. The episodes themselves are not affected.
"""

import argparse
import time

import numpy as np
import torch
from stable_baselines3 import PPO

import plangym_like

DISCOUNT = 0.99


class Search:
    """Chooses actions in the current states of environments.

    Parameters
    ----------
    env_id : str
    model : PPO
    horizon : int
        For how many steps an action is tried.
    """

    def __init__(self, env_id, model, horizon):
        self.env = plangym_like.make(env_id, remove_time_limit=False)
        self.policy, self.horizon = model.policy, horizon
        self.num_actions = int(model.action_space.n)

    def choose(self, envs, running):
        """Return the best actions of the environments where `running` ``(n,) bool`` is true."""
        rows = np.repeat(envs.get_states(running), self.num_actions, axis=0)
        actions = np.tile(np.arange(self.num_actions), np.count_nonzero(running))
        totals, going_on = np.zeros(len(rows)), np.ones(len(rows), bool)
        for step in range(self.horizon):
            result = self.env.step_batch(actions, rows)
            totals += DISCOUNT**step * result.rewards * going_on
            going_on &= ~(result.terminateds | result.truncateds)
            rows, obs = result.states, torch.as_tensor(result.obs)
            with torch.no_grad():
                actions = self.policy.get_distribution(obs).mode().numpy()
        with torch.no_grad():
            rest = self.policy.predict_values(obs).squeeze(-1).numpy()
        totals += DISCOUNT**self.horizon * rest * going_on
        return totals.reshape(-1, self.num_actions).argmax(1)


def play(env_id, model, seed, search=None, episodes=8):
    """Play episodes with `search`, or the policy if it is ``None``; return the returns."""
    envs = plangym_like.make_vec(env_id, episodes)
    obs, _ = envs.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        if search is None:
            actions, _ = model.predict(obs, deterministic=True)
        else:
            actions = np.zeros(episodes, int)
            actions[running] = search.choose(envs, running)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1", help="with actions in a Discrete space")
    parser.add_argument("--steps", type=int, default=2048, help="steps of learning")
    parser.add_argument(
        "--horizon", type=int, default=60, help="for how many steps actions are tried"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a small network is faster on one thread
    begun = time.perf_counter()
    learner = plangym_like.make_vec(args.env, 8).as_sb3()
    model = PPO("MlpPolicy", learner, n_steps=64, batch_size=128, seed=args.seed, device="cpu")
    model.learn(args.steps)
    learner.close()
    print(f"learned for {args.steps:,} steps ({time.perf_counter() - begun:.0f} s)", flush=True)
    alone = play(args.env, model, args.seed + 1000)
    print(f"mean return of the policy: {alone.mean():.1f}", flush=True)
    begun = time.perf_counter()
    guided = play(args.env, model, args.seed + 1000, Search(args.env, model, args.horizon))
    print(f"mean return with the search: {guided.mean():.1f}")
    print(f"the search took {time.perf_counter() - begun:.0f} s")
