"""AlphaZero learns Connect Four by playing against itself.

    python examples/connect_four.py --seconds 3600            # writes learn/connect_four.pt
    python examples/connect_four.py --seconds 3600 --resume   # continues from there
    python examples/connect_four.py --seconds 3600 --perfect  # needs: pip install bitbully

Many games are played at once: `PUCT.plan_batch` searches all their positions together, with one
call of the network for each round. The network learns the policies of the searches and the results
of the games, and their mirror images; the moving average of its weights plays. From time to time it
is evaluated: it plays against `UCT`, and with `--perfect` against a perfect player, which also says
how many of its moves are mistakes. The results and a game are written to learn/connect_four.json.
(D. Silver et al., "A general reinforcement learning algorithm that masters chess, shogi and Go
through self-play", Science 2018.)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import plangym_like
from plangym_like import planners
from plangym_like.results import BatchInfo, BatchTransition

ROWS, COLUMNS, HEIGHT = 6, 7, 7  # a column has a bit more than places, which is always 0
BOTTOM = np.array([1 << HEIGHT * column for column in range(COLUMNS)], np.int64)
PLACES = BOTTOM * ((1 << ROWS) - 1)
TOP = BOTTOM << (ROWS - 1)
FULL = -100  # the score of a column that is full
# Takes positions and a seed, and returns an action for each position.
Player = Callable[[BatchTransition, Any], Any]


class ConnectFour(gymnasium.Env[Any, Any]):
    """Connect Four on bitboards: the stones of the player to move, and all stones."""

    observation_space = spaces.Box(0, 2**62, (2,), np.int64)
    action_space = spaces.Discrete(COLUMNS)
    state_attributes = (("board", np.int64, (2,)),)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.board = np.zeros(2, np.int64)
        return self.board.copy(), self._info()

    def step(self, action: Any) -> Any:
        boards, _, rewards, ended, _ = self.step_states(self.board[None], np.array([action]))
        self.board = boards[0]
        return self.board.copy(), float(rewards[0]), bool(ended[0]), False, self._info()

    def _info(self) -> dict[str, Any]:
        legal, to_play = self.turns_of_states(self.board[None])
        return {"action_mask": legal[0].astype(np.int8), "to_play": int(to_play[0])}

    @staticmethod
    def turns_of_states(boards: Any) -> tuple[Any, Any]:
        """Return which columns are not full, ``(N, 7)``, and who moves, ``(N,)``."""
        stones = boards[:, 1]
        return (stones[:, None] & TOP) == 0, np.bitwise_count(stones).astype(np.int64) % 2

    @staticmethod
    def step_states(boards: Any, actions: Any) -> Any:
        """Step many boards; who chooses a full column has lost."""
        own, stones = boards.T
        stone = (stones + BOTTOM[actions]) & PLACES[actions] & ~stones
        own, stones = own | stone, stones | stone
        won = np.zeros(len(boards), bool)
        for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
            pairs = own & (own >> shift)
            won |= (pairs & (pairs >> 2 * shift)) != 0
        after, wrong = np.stack([stones & ~own, stones], axis=1), stone == 0
        ended = won | wrong | (stones == PLACES.sum())
        return after, after, np.where(wrong, -1.0, won), ended, np.zeros(len(boards), bool)


def planes(boards: Any) -> torch.Tensor:
    """Return boards ``(N, 2)`` as planes ``(N, 2, 6, 7)``: own stones, and the other player's."""
    bits = BOTTOM << np.arange(ROWS)[:, None]
    both = np.stack([boards[:, 0], boards[:, 1] & ~boards[:, 0]], axis=1)
    return torch.from_numpy((both[:, :, None, None] & bits) != 0).float()


class Network(torch.nn.Module):
    """A policy and a value on three shared layers; `is_short` evaluates in 16 bits."""

    def __init__(self, width: int = 64, is_short: bool = False) -> None:
        super().__init__()
        self.is_short = is_short
        nn = torch.nn
        self.trunk = nn.Sequential(
            *(nn.Conv2d(2, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, 8, 3, padding=1), nn.ReLU(), nn.Flatten()),
        )
        self.policy = nn.Linear(8 * ROWS * COLUMNS, COLUMNS)
        self.value = nn.Sequential(nn.Linear(8 * ROWS * COLUMNS, 1), nn.Tanh())

    def forward(self, boards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``(N, 7)`` and values ``(N,)`` for the player to move."""
        hidden = self.trunk(boards)
        return self.policy(hidden), self.value(hidden).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, boards: Any) -> tuple[Any, Any]:
        """Return the priors and values that `PUCT` needs; boards that recur are computed once."""
        boards, rows = np.unique(boards, axis=0, return_inverse=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_short):
            logits, values = self(planes(boards))
        rows = rows.ravel()  # NumPy 2.0 returns two axes
        return logits.float().softmax(-1).numpy()[rows], values.float().numpy()[rows]


class Games:
    """Several games at once; one that has ended begins again."""

    def __init__(self, env: Any, count: int) -> None:
        self._env, self._start = env, env.reset(seed=0)
        self.states = np.repeat(self._start.state[None], count, axis=0)
        self.boards = np.repeat(self._start.obs[None], count, axis=0)

    def positions(self, games: Any = slice(None)) -> BatchTransition:
        """Return the positions of some games, to search from."""
        states, boards = self.states[games], self.boards[games]
        zeros, flags = np.zeros(len(states)), np.zeros(len(states), bool)
        legal, to_play = ConnectFour.turns_of_states(boards)
        infos = BatchInfo(len(states), {"action_mask": legal, "to_play": to_play})
        return BatchTransition(states, boards, zeros, flags, flags, infos)

    def play(self, actions: Any) -> tuple[Any, Any]:
        """Play an action in each game; return the movers' rewards, and which games ended."""
        step = self._env.step_batch(actions, self.states)
        self.states, self.boards = np.array(step.states), np.array(step.obs)
        self.states[step.terminateds] = self._start.state
        self.boards[step.terminateds] = self._start.obs
        return step.rewards, step.terminateds


def self_play(planner: Any, args: argparse.Namespace, rng: Any) -> list[Any]:
    """Play until as many games have ended as there are; return boards, policies and results."""
    games, found = Games(planner.env, args.games), []
    moves: list[list[Any]] = [[] for _ in range(args.games)]
    finished = 0
    while finished < args.games:
        boards = games.boards
        plans = planner.plan_batch(games.positions(), budget=args.simulations, seed=rng)
        policies = np.array([plan.info["policy"] for plan in plans])
        # At first, draw in proportion to the visits, so that games differ; later, take the best.
        actions = [
            rng.choice(COLUMNS, p=policy) if len(played) < 10 else policy.argmax()
            for policy, played in zip(policies, moves, strict=True)
        ]
        planner.advance(actions)
        rewards, ended = games.play(np.array(actions))
        for number, played in enumerate(moves):
            played.append((boards[number], policies[number]))
            if ended[number]:
                # The reward is that of the last mover; the others alternate back to the first.
                signs = (-1.0) ** np.arange(len(played))[::-1]
                results = rewards[number] * signs
                found += [(*move, result) for move, result in zip(played, results, strict=True)]
                moves[number], finished = [], finished + 1
    return found


def train(training: Training, batches: int) -> None:
    """Fit the policy to those of the searches, and the value to the results of the games."""
    network, optimizer, rng = training.network, training.optimizer, training.rng
    boards, policies, results = (np.array(part) for part in zip(*training.moves, strict=True))
    for _ in range(batches):
        rows = rng.integers(len(boards), size=256)
        inputs, policy = planes(boards[rows]), torch.from_numpy(policies[rows]).float()
        if rng.random() < 0.5:  # the mirror image is as good a position
            inputs, policy = inputs.flip(-1), policy.flip(-1)
        logits, values = network(inputs)
        policy_loss = torch.nn.functional.cross_entropy(logits, policy)
        value_loss = (values - torch.from_numpy(results[rows]).float()).square().mean()
        optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        optimizer.step()
        training.average.update_parameters(network)


def stones(boards: Any) -> Any:
    """Return boards ``(N, 2)`` as cells ``(N, 6, 7)``: 0 is free, 1 and 2 are the players'.

    The first row is the top, and player 1 moves first.
    """
    bits = BOTTOM << np.arange(ROWS)[::-1, None]
    own, taken = ((part[:, None, None] & bits) != 0 for part in boards.T)
    own_number = 1 + np.bitwise_count(boards[:, 1, None, None]) % 2
    return np.where(taken, np.where(own, own_number, 3 - own_number), 0)


class PerfectPlayer:
    """A `Player` that knows who wins after each move, from the solver BitBully and its book."""

    def __init__(self) -> None:
        import bitbully

        self._board, self._solver = bitbully.Board, bitbully.BitBully()

    def scores(self, boards: Any) -> Any:
        """Return scores ``(N, 7)`` of the columns, for the player to move.

        A score is positive if the column wins: 1 with the last stone of the player, 2 with the last
        but one. It is 0 for a draw, negative for a loss, and `FULL` for a full column.
        """
        found = np.full((len(boards), COLUMNS), FULL)
        for row, cells in zip(found, stones(boards).tolist(), strict=True):
            scores = self._solver.score_all_moves(self._board(cells))
            row[list(scores)] = list(scores.values())
        return found

    def __call__(self, positions: BatchTransition, seed: Any) -> Any:
        """Win soon, or else draw, or else lose late; draw lots between equal columns."""
        scores = self.scores(positions.obs)
        lots = np.random.default_rng(seed).random(scores.shape)  # below 1; scores are whole numbers
        return (scores + lots).argmax(axis=1)


def exam(env: Any, perfect: PerfectPlayer, count: int = 200) -> tuple[BatchTransition, Any]:
    """Return positions in which a move can be a mistake, and which columns are none, ``(N, 7)``.

    A mistake turns a win into a draw or a loss, or a draw into a loss. The positions, at most
    `count`, are reached by up to 35 random moves, and are always the same.
    """
    rng, games = np.random.default_rng(0), Games(env, 3 * count)
    turns = rng.integers(36, size=3 * count)
    states, boards = games.states.copy(), games.boards.copy()
    for turn in range(36):
        now = turns == turn
        states[now], boards[now] = games.states[now], games.boards[now]
        legal, _ = ConnectFour.turns_of_states(games.boards)
        games.play((legal * rng.random(legal.shape)).argmax(axis=1))
    _, rows = np.unique(boards, axis=0, return_index=True)
    games.states, games.boards = states[np.sort(rows)], boards[np.sort(rows)]
    scores = perfect.scores(games.boards)
    results = np.where(scores == FULL, -2, np.sign(scores))
    is_right = results == results.max(axis=1, keepdims=True)
    rows = np.flatnonzero((~is_right & (results > -2)).any(axis=1))[:count]
    return games.positions(rows), is_right[rows]


def searcher(planner: Any, budget: int) -> Player:
    """Return a player that searches with `budget` transitions a move."""

    def choose(positions: BatchTransition, seed: Any) -> Any:
        plans = planner.plan_batch(positions, budget=budget, seed=seed)
        return np.array([plan.next_action for plan in plans])

    return choose


def match(env: Any, ours: Player, other: Player, count: int, seed: int) -> tuple[float, list[int]]:
    """Return the share of games that `ours` wins, and the moves of the first game.

    A draw is half of a win. Colours alternate; `ours` moves first in the first game.
    """
    games, score, on = Games(env, count), 0.0, np.ones(count, bool)
    first, moves = np.arange(count) % 2 == 0, []
    for turn in range(ROWS * COLUMNS):
        actions = np.zeros(count, int)
        mine = first == (turn % 2 == 0)
        for player, theirs in ((ours, mine), (other, ~mine)):
            rows = np.flatnonzero(theirs & on)
            if len(rows):
                actions[rows] = player(games.positions(rows), [seed, turn])
        if on[0]:
            moves.append(int(actions[0]))
        rewards, ended = games.play(actions)
        over = on & ended
        score += (0.5 + np.where(mine, 0.5, -0.5) * rewards)[over].sum()
        on &= ~ended
        if not on.any():
            break
    return float(score / count), moves


class Training:
    """What a checkpoint holds: the network, its optimizer, the last moves, and the progress.

    `average` is the moving average of the network over about 1,000 updates. It plays better than
    the network, which each update changes a bit.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.network, self.rng = Network(is_short=args.bfloat16), np.random.default_rng(args.seed)
        self.average = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-3, weight_decay=1e-4)
        self.moves: deque[Any] = deque(maxlen=100_000)
        self.curve: list[dict[str, float]] = []
        self.played, self.seconds = 0, 0.0

    def save(self, path: Path) -> None:
        """Write a checkpoint; the last one stays until the new one is complete."""
        columns = [np.array(part) for part in zip(*self.moves, strict=True)]
        parts = ("network", "average", "optimizer")
        content: dict[str, Any] = {name: getattr(self, name).state_dict() for name in parts}
        content |= {"rng": self.rng.bit_generator.state, "moves": columns}
        content |= {"curve": self.curve, "played": self.played, "seconds": self.seconds}
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        saved = torch.load(path, weights_only=False)
        for name in ("network", "average", "optimizer"):
            getattr(self, name).load_state_dict(saved[name])
        self.rng.bit_generator.state = saved["rng"]
        self.moves.extend(zip(*saved["moves"], strict=True))
        self.curve, self.played = saved["curve"], saved["played"]
        self.seconds = saved["seconds"]


class Evaluation:
    """Measures a player: its score against UCT and a perfect player, and its mistakes."""

    def __init__(self, env: Any, args: argparse.Namespace) -> None:
        uct = planners.UCT(env, rollout=ROWS * COLUMNS)
        self._env, self._count = env, args.matches
        self._uct = searcher(uct, args.opponent * (1 + ROWS * COLUMNS // 2))
        self._perfect = PerfectPlayer() if args.perfect else None
        if self._perfect is not None:
            self._positions, self._is_right = exam(env, self._perfect)
            print(f"UCT: {self._right(self._uct):.0%} of moves right", flush=True)

    def __call__(self, player: Player, seed: int) -> tuple[dict[str, float], list[int]]:
        """Return the measurements by name, and the moves of a game against UCT."""
        score, moves = match(self._env, player, self._uct, self._count, seed)
        found = {"against UCT": score}
        if self._perfect is not None:
            score, _ = match(self._env, player, self._perfect, self._count, seed)
            found |= {"against the perfect player": score, "of moves right": self._right(player)}
        return found, moves

    def _right(self, player: Player) -> float:
        actions = player(self._positions, 0)
        return float(self._is_right[np.arange(len(actions)), actions].mean())


def learn(args: argparse.Namespace) -> float:
    """Play, train and save until the time is over; return the last score against UCT."""
    training = Training(args)
    if args.resume:
        training.load(args.out)
    network: Any = training.average.module
    env = plangym_like.make(ConnectFour)
    planner = planners.PUCT(env, network.evaluate, noise=0.25, alpha=1.0)
    player = searcher(planners.PUCT(env, network.evaluate), args.match_simulations)
    evaluation = Evaluation(env, args)
    last, due = time.monotonic(), 0.0
    end = last + args.seconds
    while True:
        found = self_play(planner, args, training.rng)
        training.moves.extend(found)
        training.played += args.games
        train(training, 10 + len(found) // 64)
        now = time.monotonic()
        training.seconds, last = training.seconds + now - last, now
        if now < min(end, due):
            continue
        training.save(args.out)  # if the evaluation is interrupted, nothing is lost
        results, moves = evaluation(player, len(training.curve))
        training.curve.append({"games": training.played, "seconds": training.seconds} | results)
        words = ", ".join(f"{value:.0%} {name}" for name, value in results.items())
        print(f"{training.played:,} games: {words}", flush=True)
        training.save(args.out)
        record = {"curve": training.curve, "game": moves}
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        if now >= end:
            return results["against UCT"]
        due = time.monotonic() + args.every


def at_least(least: int, kind: type) -> Callable[[str], Any]:
    """Return a function that reads a finite number that is not less than `least`."""

    def number(text: str) -> Any:
        found = kind(text)
        if not least <= found < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least} and finite, got {text}")
        return found

    return number


def checkpoint(text: str) -> Path:
    """Read the path of a checkpoint, which can be written, and has a name of its own."""
    path = Path(text)
    if path.suffix != ".pt":
        raise argparse.ArgumentTypeError(f"must end with .pt, as results end with .json: {text}")
    folder = next(one for one in path.absolute().parents if os.path.exists(one))
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"no files can be written to {folder}")
    return path


def main() -> int:
    """Read the command line and learn; return 1 if the goal was missed."""
    count = at_least(1, int)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=at_least(0, float), default=3600.0)
    parser.add_argument("--every", type=float, default=300.0, help="seconds between evaluations")
    parser.add_argument("--games", type=count, default=64, help="games that are played at once")
    parser.add_argument("--simulations", type=count, default=64, help="for a move of self-play")
    parser.add_argument(
        "--match-simulations", type=count, default=256, help="for a move of a match"
    )
    parser.add_argument("--opponent", type=count, default=1000, help="for a move of UCT, about")
    parser.add_argument("--matches", type=count, default=20, help="games of an evaluation")
    parser.add_argument(
        "--perfect", action="store_true", help="evaluate against a perfect player, too"
    )
    parser.add_argument("--goal", type=float, default=0.8, help="score against UCT in the end")
    parser.add_argument("--threads", type=count, default=2, help="cores for the network")
    parser.add_argument(
        "--bfloat16", action="store_true", help="search with 16 bits; is faster on CPUs with AMX"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the file --out")
    parser.add_argument("--out", type=checkpoint, default="learn/connect_four.pt")
    args = parser.parse_args()
    if args.perfect and importlib.util.find_spec("bitbully") is None:
        parser.error("--perfect needs BitBully, a solver: pip install bitbully")
    if args.resume and not args.out.exists():
        parser.error(f"--resume needs a checkpoint, but there is no {args.out}")
    torch.set_num_threads(args.threads)
    score = learn(args)
    if score < args.goal:
        print(f"{score:.0%} is less than {args.goal:.0%}", file=sys.stderr)
    return int(score < args.goal)


if __name__ == "__main__":
    sys.exit(main())
