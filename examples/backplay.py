"""Backplay: PPO of Stable-Baselines3 begins its episodes in states of a demonstration.

    python examples/backplay.py                        # MountainCar, seed 0
    python examples/backplay.py --steps 200000 --seed 3

MountainCar pays -1 a step until the car is on the hill, and the engine is too weak to drive up
directly. PPO that begins at the bottom sees no goal for a long time, and learns nothing from it.

1. A search explores states of the simulator until one path reaches the goal: the demonstration.
2. PPO begins its episodes near the end of that path. When a fifth of them reach the goal, too, they
   begin a bit earlier (T. Salimans and R. Chen, "Learning Montezuma's Revenge from a single
   demonstration", 2018; C. Resnick et al., "Backplay", 2018; the second phase of Go-Explore,
   A. Ecoffet et al., Nature 590, 2021).
3. At last they begin where the environment begins, and nothing of the demonstration is needed.

Plain PPO is given as many steps as the search and the learning together, and the same settings.
"""

import argparse
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor, VecNormalize

import plangym_like

ENV = "MountainCar-v0"
STEPS_BACK, ENOUGH, RECENT = 2, 0.2, 20


def search(rng, rows=64):
    """Return a path to the goal, and the number of steps taken.

    The archive holds the first state that was found in every cell of positions and speeds. Rows of
    a batch continue from cells that were chosen at random, with a random action for some steps.
    """
    env = plangym_like.make(ENV, remove_time_limit=False)
    root, obs, _ = env.reset(seed=0)
    archive, seen = [(root, None)], {_cell(obs)}
    steps = 0
    while True:
        chosen = rng.integers(len(archive), size=rows)
        actions = rng.integers(env.action_space.n, size=rows)
        dt = rng.integers(1, 9, size=rows)
        result = env.step_batch(actions, np.stack([archive[i][0] for i in chosen]), dt)
        steps += int(dt.sum())
        for i, parent in enumerate(chosen):
            cell = _cell(result.obs[i])
            if result.terminateds[i] or (cell not in seen and not result.truncateds[i]):
                seen.add(cell)
                step = archive[parent][0], actions[i], dt[i]
                archive.append((result.states[i], (parent, step)))
            if result.terminateds[i]:
                env.close()
                return _path(archive), steps


def _cell(obs):
    return int(obs[0] * 10 // 1), int(obs[1] * 100 // 1)


def _path(archive):
    """Return the steps that lead to the newest entry: states, actions and dt."""
    steps, origin = [], archive[-1][1]
    while origin is not None:
        parent, step = origin
        steps.append(step)
        origin = archive[parent][1]
    return tuple(map(np.array, zip(*reversed(steps), strict=True)))


class Backplay(VecEnvWrapper):
    """Begins episodes at earlier and earlier steps of a path.

    `first` is the step where they begin now; before step 1 they begin as the environment does.
    """

    def __init__(self, venv, path, rng):
        super().__init__(venv)
        self.states, self.actions, self.dt = path
        self.env = plangym_like.make(ENV, remove_time_limit=False)
        self.rng, self.recent = rng, []
        self.first = len(self.actions) - 1
        self.begun = np.zeros(self.num_envs, int)  # at which step of the path

    def reset(self):
        return self._begin(self.venv.reset(), np.arange(self.num_envs))

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        ended = np.flatnonzero(dones)
        for i in ended:
            if self.begun[i] > 0 and self.begun[i] - STEPS_BACK <= self.first:
                self.recent.append(not infos[i]["TimeLimit.truncated"])
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
            at = np.minimum(at, len(self.actions) - 1)
            # A state holds its random generator: new seeds, so that no two environments draw alike.
            seeds = self.rng.integers(2**31, size=len(ended))
            before = self.actions[at - 1], self.states[at - 1], self.dt[at - 1]
            start = self.env.step_batch(*before, seeds=seeds)
            self.venv.set_states(start.states, ended)
            obs[ended], self.begun[ended] = start.obs, at
        return obs


def learn(steps, seed, path=None):
    """Return the mean return of 100 episodes of what PPO has learned in so many steps."""
    venv = plangym_like.make_vec(ENV, 16).as_sb3()
    if path is not None:
        venv = backplay = Backplay(venv, path, np.random.default_rng(seed))
    venv = VecNormalize(VecMonitor(venv))
    model = PPO(
        "MlpPolicy", venv, n_steps=64, batch_size=256, n_epochs=8, gae_lambda=0.98, seed=seed,
        device="cpu", learning_rate=1e-3,
    )  # fmt: skip
    model.learn(steps)
    if path is not None:
        place = "at the beginning" if backplay.first <= 0 else f"at step {backplay.first}"
        print(f"the curriculum ended {place} of {len(path[1])} of the path", flush=True)
    test = VecNormalize(VecMonitor(plangym_like.make_vec(ENV, 16).as_sb3()), training=False)
    test.obs_rms, test.norm_reward = venv.obs_rms, False
    test.seed(seed + 1000)
    mean, _ = evaluate_policy(model, test, n_eval_episodes=100)
    venv.close()
    test.close()
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="of each of the two")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a small network is faster on one
    begun = time.perf_counter()
    path, searched = search(np.random.default_rng(args.seed))
    print(f"the search found a path of {path[2].sum()} steps in {searched:,}", flush=True)
    backplay = learn(args.steps - searched, args.seed, path)
    print(f"mean return with Backplay: {backplay:.1f}", flush=True)
    print(f"mean return of plain PPO: {learn(args.steps, args.seed):.1f}")
    print(f"{time.perf_counter() - begun:.0f} s")
