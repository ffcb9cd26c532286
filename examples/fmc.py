"""Fractal Monte Carlo: a swarm of walkers plays one game, and its best line of play is kept.

    python examples/fmc.py ALE/MsPacman-v5 --seconds 60

The search is the swarm of S. Hernandez Cerezo and G. Duran-Ballester, "Fractal AI: a fragile theory
of intelligence" (arXiv:1803.05049), run over a whole game. All walkers start where the game starts.
Then, again and again:

1. every walker holds a random action for a random while: one `step_batch`;
2. every walker gets a virtual reward, ``score^alpha * distance^beta``: its score, and how far its
   observation is from that of a random companion, each made comparable by `relativize`;
3. every walker looks at another random companion and, the more that one's virtual reward exceeds
its
   own, the likelier it becomes a copy of it. Dead walkers always do.

So the swarm grows where score is high and walkers are few. Copying a walker is copying a state row.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from show import draw_scores, film
from tqdm import tqdm

import plangym_like

CAMP_EVERY = 8  # moves of the swarm from one camp to the next
CAMPS = 128  # camps that are kept


def relativize(values: np.ndarray) -> np.ndarray:
    """Map values of any scale to positive ones around 1, keeping their order.

    Above the mean it grows like a logarithm, below it shrinks like an exponential: an outlier leads
    the swarm, but does not own it.
    """
    spread = values.std()
    if spread == 0:
        return np.ones(len(values))
    z = (values - values.mean()) / spread
    return np.where(z > 0, 1 + np.log1p(np.maximum(z, 0)), np.exp(np.minimum(z, 0)))


def features(obs: Any) -> np.ndarray:
    """Flatten a batch of observations, nested ones too, to ``(N, any) float64``."""
    if isinstance(obs, dict):
        obs = tuple(obs.values())
    if isinstance(obs, tuple):
        return np.hstack([features(part) for part in obs])
    return np.asarray(obs, float).reshape(len(obs), -1)


class Lineage:
    """Who came from whom, by what move: every walker's whole game, at three numbers a step."""

    def __init__(self) -> None:
        self._moves: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, parents: np.ndarray, actions: np.ndarray, dt: np.ndarray) -> np.ndarray:
        """Record one step of all N walkers, and return the node ``(N,)`` that each is at now."""
        self._moves.append((parents, actions, dt))
        count = len(parents)
        return np.arange(count) + (len(self._moves) - 1) * count

    def game(self, node: int) -> list[tuple[Any, int]]:
        """Return the moves ``(action, dt)`` that lead from the start of the game to `node`."""
        moves = []
        while node >= 0:
            time, walker = divmod(node, len(self._moves[0][0]))
            parents, actions, dt = self._moves[time]
            moves.append((actions[walker].tolist(), int(dt[walker])))
            node = parents[walker]
        return moves[::-1]


class Swarm:
    """Walkers that explore one game together.

    Attributes
    ----------
    states : ``(N, state_nbytes) uint8``
    obs : ``(N, any) float64``
    scores : ``(N,) float64``, since the start of the game
    frames : ``(N,) int64``, since the start of the game
    nodes : ``(N,) int64``, the place of each walker in the `Lineage`, -1 at the start
    """

    def __init__(self, env: Any, args: argparse.Namespace) -> None:
        self.env, self.args, self.size = env, args, args.walkers
        self.rng = np.random.default_rng(args.seed)
        self.actions = gymnasium.vector.utils.batch_space(env.action_space, self.size)
        self.actions.seed(args.seed)
        self.lineage = Lineage()
        self.transitions = self.simulated = 0
        # The best of the games that came to an end: score, frames, node.
        self.ended: tuple[float, int, int] | None = None
        self.start()

    def start(self) -> None:
        """Bring all walkers to the start of the game."""
        state, obs, info = self.env.reset(seed=self.args.seed)
        everyone = np.zeros(self.size, int)
        self.states = state[None][everyone]
        self.obs = features(self._one(obs))[everyone]
        self.scores, self.frames = np.zeros(self.size), np.zeros(self.size, int)
        self.nodes = everyone - 1
        self.lives = info.get("lives", 0)
        self.camps: deque[tuple[Any, ...]] = deque(maxlen=CAMPS)
        self.setbacks, self.record, self.moves = 0, -np.inf, 0

    @staticmethod
    def _one(obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: Swarm._one(part) for key, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(Swarm._one(part) for part in obs)
        return np.asarray(obs)[None]

    def move(self) -> None:
        """Step every walker, then let them copy each other."""
        if self.moves % CAMP_EVERY == 0:
            self.camps.append(
                (self.states, self.obs, self.scores, self.frames, self.nodes, self.lives)
            )
        self.moves += 1
        actions, dt = self.actions.sample(), self.rng.integers(1, self.args.hold + 1, self.size)
        step = self.env.step_batch(actions, self.states, dt=dt)
        self.nodes = self.lineage.add(self.nodes, actions, dt)
        self.states, self.obs = step.states, features(step.obs)
        self.scores = self.scores + step.rewards
        self.frames = self.frames + step.infos["n_step"]
        self.transitions += self.size
        self.simulated += int(step.infos["n_step"].sum())

        over = step.terminateds | step.truncateds
        dead = over.copy()
        if step.infos.mask("lives").all():
            # A lost life is a death, as long as somebody still has it.
            dead |= step.infos["lives"] < self.lives
            self.lives = max(self.lives, step.infos["lives"].max())
        self._remember_ended(over if not dead.all() else dead)
        if not dead.all():
            self._copy_each_other(dead)
        elif step.truncateds.any():
            self.start()  # played to the end: try another game
        else:
            self._retreat()

    def _copy_each_other(self, dead: np.ndarray) -> None:
        alive = np.flatnonzero(~dead)
        companion = self.rng.choice(alive, self.size)
        distance = np.linalg.norm(self.obs - self.obs[companion], axis=1)
        virtual = (
            relativize(self.scores) ** self.args.alpha * relativize(distance) ** self.args.beta
        )
        companion = self.rng.choice(alive, self.size)
        gain = (virtual[companion] - virtual) / virtual
        copies = dead | (self.rng.random(self.size) < gain)
        copies[alive[self.scores[alive].argmax()]] = False  # the leader stays what it is
        self._take(np.where(copies, companion, np.arange(self.size)))

        if self.scores.max() > self.record:
            self.record, self.setbacks = self.scores.max(), 0

    def _take(self, who: np.ndarray) -> None:
        self.states, self.obs, self.nodes = self.states[who], self.obs[who], self.nodes[who]
        self.scores, self.frames = self.scores[who], self.frames[who]

    def _retreat(self) -> None:
        """Go back to an earlier camp, further with every failure in a row: all walkers died."""
        for _ in range(min(2**self.setbacks, len(self.camps))):
            camp = self.camps.pop()
        self.setbacks += 1
        self.states, self.obs, self.scores, self.frames, self.nodes, self.lives = camp
        self.moves = 0

    def _remember_ended(self, ended: np.ndarray) -> None:
        for walker in np.flatnonzero(ended):
            if self.ended is None or self.scores[walker] > self.ended[0]:
                self.ended = self._game_of(walker)

    def _game_of(self, walker: Any) -> tuple[float, int, int]:
        return float(self.scores[walker]), int(self.frames[walker]), int(self.nodes[walker])

    def best(self) -> tuple[float, int, int]:
        """Return the best game so far: score, frames, node.

        A game that goes on counts where none has ended, or where it is better than the best of
        those and has lasted longer too: else, with rewards below 0, it would be best not to play.
        """
        leader = self._game_of(self.scores.argmax())
        if self.ended is None:
            return leader
        better, longer = leader[0] > self.ended[0], leader[1] > self.ended[1]
        return leader if better and longer else self.ended


def random_scores(env: Any, episodes: int, seed: int) -> np.ndarray:
    """Return the scores ``(episodes,)`` of a player that moves at random, games side by side."""
    states = np.stack([env.reset(seed=seed + 1 + index).state for index in range(episodes)])
    actions = gymnasium.vector.utils.batch_space(env.action_space, episodes)
    actions.seed(seed)
    scores, playing = np.zeros(episodes), np.arange(episodes)
    for _ in range(10_000):  # some environments never end
        step = env.step_batch(actions.sample()[playing], states[playing])
        scores[playing] += step.rewards
        states[playing] = step.states
        playing = playing[~(step.terminateds | step.truncateds)]
        if len(playing) == 0:
            break
    return scores


def search(swarm: Swarm, seconds: float) -> list[tuple[int, float]]:
    """Move the swarm for a while; return simulated frames and best score as they grew."""
    curve = [(0, 0.0)]
    begin = now = time.perf_counter()
    layout = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s{postfix}"
    with tqdm(total=seconds, bar_format=layout, mininterval=0.5) as bar:
        while now - begin < seconds:
            swarm.move()
            score, frames, _ = swarm.best()
            curve.append((swarm.simulated, score))
            before, now = now, time.perf_counter()
            rate = swarm.transitions / (now - begin)
            bar.set_postfix_str(
                f"score {score:,.6g}, game of {frames:,} frames, {rate:,.0f} transitions/s",
                refresh=False,
            )
            bar.update(min(now - before, seconds - bar.n))
    return curve


def main() -> None:
    """Search, compare with a random player, and show what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="ALE/MsPacman-v5", help="a Gymnasium id")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search")
    parser.add_argument("--walkers", type=int, default=max(32, 4 * (os.cpu_count() or 1)))
    parser.add_argument("--hold", type=int, default=8, help="longest hold of one action, in steps")
    parser.add_argument("--alpha", type=float, default=1.0, help="weight of the score")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of the distance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--episodes", type=int, default=8, help="games of the random player")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results")
    args = parser.parse_args()

    # Distances between rows of console memory say more than those between screens, and cost less.
    kwargs = {"obs_type": "ram"} if args.env.startswith("ALE/") else {}
    with plangym_like.make(
        args.env, n_workers=args.workers, remove_time_limit=False, **kwargs
    ) as env:
        chance = random_scores(env, args.episodes, args.seed)
        swarm = Swarm(env, args)
        curve = search(swarm, args.seconds)
    score, frames, node = swarm.best()

    args.out.mkdir(parents=True, exist_ok=True)
    found = {
        "id": args.env,
        "kwargs": kwargs,
        "seed": args.seed,
        "score": score,
        "frames": frames,
        "random_mean": float(chance.mean()),
        "actions": swarm.lineage.game(node),
    }
    (args.out / "actions.json").write_text(json.dumps(found))
    draw_scores(args.out / "score.png", found, curve)
    film(args.out / "game.gif", found)

    times = f" ({score / chance.mean():.1f} times)" if min(score, chance.mean()) > 0 else ""
    print(f"score of the search: {score:,.6g} in a game of {frames:,} frames")
    print(f"random player:       {chance.mean():,.6g}, mean of {args.episodes} games{times}")
    print(f"simulated:           {swarm.transitions:,} transitions, {swarm.simulated:,} frames")
    for name in ("actions.json", "score.png", "game.gif"):
        print(f"wrote {args.out / name}")


if __name__ == "__main__":
    main()
