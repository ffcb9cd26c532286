"""Backplay: PPO of Stable-Baselines3 begins its episodes in states of a demonstration.

    python examples/backplay.py                        # a frozen lake of 16 x 16, seed 0
    python examples/backplay.py --size 24 --steps 200000

On a frozen lake, only the goal in the far corner has a reward, which is 1; holes end the episode.
If PPO begins in the first corner, it never sees the goal, so it learns nothing.

1. A search explores states of the simulator until one path reaches the goal: the demonstration.
2. PPO begins its episodes near the end of that path. When a fifth of the episodes reach the goal,
   they begin a bit earlier (T. Salimans and R. Chen, "Learning Montezuma's Revenge from a single
   demonstration", 2018; C. Resnick et al., "Backplay", 2018; the second phase of Go-Explore, A.
   Ecoffet et al., Nature 590, 2021).
3. In the end they begin where the environment begins, and the demonstration is no longer needed.

For comparison, plain PPO gets the same settings, and as many steps as search and learning together.
"""

import argparse
import time

import numpy as np
import torch
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor

import plangym_like

ENV = "FrozenLake8x8-v1"
STEPS_BACK, ENOUGH, RECENT = 2, 0.2, 20


def search(rng, options, rows=16):
    """Return the states and observations of a path to the goal, and the number of steps taken.

    The archive holds the first state that was found at every place. Rows of a batch continue from
    places that were chosen at random, with a random action.
    """
    env = plangym_like.make(ENV, remove_time_limit=False, **options)
    root, obs, _ = env.reset(seed=0)
    archive, seen, steps = [(root, obs, None)], {int(obs)}, 0
    while True:
        chosen = rng.integers(len(archive), size=rows)
        actions = rng.integers(env.action_space.n, size=rows)
        result = env.step_batch(actions, np.stack([archive[i][0] for i in chosen]))
        steps += rows
        ended = result.terminateds | result.truncateds
        for i, parent in enumerate(chosen):
            if result.rewards[i] > 0:
                env.close()
                return _path(archive, parent), steps
            if not ended[i] and int(result.obs[i]) not in seen:
                seen.add(int(result.obs[i]))
                archive.append((result.states[i], result.obs[i], parent))


def _path(archive, at):
    """Return the states and observations on the path to entry `at`."""
    entries = []
    while at is not None:
        *entry, at = archive[at]
        entries.append(entry)
    return tuple(map(np.array, zip(*reversed(entries), strict=True)))


class Backplay(VecEnvWrapper):
    """Begins episodes at earlier and earlier steps of a path.

    `first` is the step where they currently begin; before step 1, they begin with a normal reset.
    """

    def __init__(self, venv, path, rng):
        super().__init__(venv)
        self.states, self.observations = path
        self.rng, self.recent = rng, []
        self.first = len(self.states) - 1
        self.begun = np.zeros(self.num_envs, int)  # at which step of the path

    def reset(self):
        return self._begin(self.venv.reset(), np.arange(self.num_envs))

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        ended = np.flatnonzero(dones)
        # Only episodes of the current stage count.
        stage = self.begun[ended] < self.first + STEPS_BACK
        self.recent += (rewards[ended] > 0)[stage & (self.begun[ended] > 0)].tolist()
        if len(self.recent) >= RECENT:
            if np.mean(self.recent) >= ENOUGH:
                self.first -= STEPS_BACK
            self.recent = []
        return self._begin(obs, ended), rewards, dones, infos

    def _begin(self, obs, ended):
        """Put the environments `ended` into states of the path."""
        self.begun[ended] = 0
        if len(ended) and self.first > 0:
            at = self.first + self.rng.integers(STEPS_BACK, size=len(ended))
            at = np.minimum(at, len(self.states) - 1)
            # States include their random generator; new seeds make environments draw differently.
            seeds = self.rng.integers(2**31, size=len(ended))
            self.venv.set_states(self.states[at], ended, seeds)
            obs[ended], self.begun[ended] = self.observations[at], at
        return obs


def learn(steps, seed, options, path=None):
    """Train PPO for `steps` steps, and return the mean return of 100 episodes."""
    venv = plangym_like.make_vec(ENV, 16, **options).as_sb3()
    if path is not None:
        venv = curriculum = Backplay(venv, path, np.random.default_rng(seed))
    model = PPO("MlpPolicy", VecMonitor(venv), n_steps=64, batch_size=256, seed=seed, device="cpu")
    model.learn(steps)
    venv.close()
    if path is not None:
        print(f"episodes begin at step {max(curriculum.first, 0)} of the path now", flush=True)
    test = VecMonitor(plangym_like.make_vec(ENV, 16, **options).as_sb3())
    mean, _ = evaluate_policy(model, test, n_eval_episodes=100, deterministic=False)
    test.close()
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=16, help="of the lake, in each direction")
    parser.add_argument("--steps", type=int, default=80_000, help="of each of the two methods")
    parser.add_argument("--seed", type=int, default=0, help="of the lake and of the learning")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a small network is faster on one thread
    begun = time.perf_counter()
    options = {"desc": generate_random_map(args.size, seed=args.seed), "is_slippery": False}
    path, searched = search(np.random.default_rng(args.seed), options)
    print(f"the search found a path of {len(path[0])} steps in {searched:,} steps", flush=True)
    backplay = learn(args.steps - searched, args.seed, options, path)
    print(f"mean return with Backplay: {backplay:.2f}", flush=True)
    print(f"mean return of plain PPO: {learn(args.steps, args.seed, options):.2f}")
    print(f"{time.perf_counter() - begun:.0f} s")
