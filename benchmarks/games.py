"""Games of our searches against OpenSpiel's ``MCTSBot``, with the same number of simulations.

Run it from anywhere; it continues where the last run has stopped::

    python benchmarks/games.py --games 200 --simulations 50 --out games.jsonl
    python benchmarks/games.py --speed  # the time of a simulation, and of evaluations by a network

The second command measures gymcts, too, if it is installed.

`UCT`, and `PUCT` with uniform priors and rollouts, play Connect Four and Othello; colours
alternate. Both sides roll out random moves to the end of the game, keep no tree from one move to
the next, and solve subtrees. The bot is the C++ one with ``uct_c=2``, as in OpenSpiel's example;
that is ``explore=1`` in `UCT`, because returns of -1 to 1 are scaled to 0 to 1. `UCT` has
``explore=0.7``, chosen after matches with 1 (docs/board_games.md). `PUCT` has ``explore=4``: its
default, 1.25, is for priors of a network. Every game is one line of the file, with its moves.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyspiel
from harness import in_turn, seconds_of, table

import plangym_like
from plangym_like import planners

# The longest rollout, in moves: games end before.
GAMES = {"connect_four": 42, "othello": 128}
TOGETHER = 20  # games that are played at the same time


class _Simulations:
    """Ends a tree search after a number of descents from each root, one at a time."""

    simulations: int

    def _affordable(self, search: Any, memory: Any, cost: int) -> Any:
        done = memory.descents
        roots = super()._affordable(search, memory, cost)  # type: ignore[misc]
        counts = np.bincount(roots, minlength=len(done))
        counts = np.minimum(counts, np.maximum(self.simulations - done, 0))
        memory.descents = done + counts
        return np.arange(len(done)).repeat(counts)


class _UCT(_Simulations, planners.UCT):
    pass


class _PUCT(_Simulations, planners.PUCT):
    pass


SEARCHES: dict[str, Any] = {
    "UCT": partial(_UCT, explore=0.7),
    "PUCT": partial(_PUCT, explore=4.0),
}


def play_games(
    planner: Any, game: Any, simulations: int, numbers: list[int]
) -> dict[int, dict[str, Any]]:
    """Play several games together; our search moves first in those with even numbers."""
    bots, states, results, moves = {}, {}, {}, {number: list[int]() for number in numbers}
    for number in numbers:
        evaluator = pyspiel.RandomRolloutEvaluator(1, number)
        bots[number] = pyspiel.MCTSBot(game, evaluator, 2.0, simulations, 1000, True, number, False)
        states[number], results[number] = game.new_initial_state(), planner.env.reset(seed=0)
    finished: dict[int, dict[str, Any]] = {}

    def move(number: int, action: int) -> None:
        states[number].apply_action(action)
        moves[number].append(action)
        if states[number].is_terminal():
            value = states.pop(number).returns()[number % 2]
            finished[number] = {"result": value, "moves": moves[number]}
        else:
            results[number] = planner.env.step(action, results[number].state)

    while states:
        ours = [one for one in states if states[one].current_player() == one % 2]
        for number in set(states).difference(ours):
            move(number, bots[number].step(states[number]))
        if ours:
            starts = [results[number] for number in ours]
            seed = [numbers[0], max(map(len, moves.values()))]
            plans = planner.plan_batch(starts, budget=10**8, seed=seed)
            for number, plan in zip(ours, plans, strict=True):
                move(number, int(plan.next_action))
    return finished


def gymcts_search(game: Any, count: int) -> Any:
    """Return a function that plans a move with gymcts, which plans for one player.

    It has the fastest environment that its interface allows: states are copies of OpenSpiel's, and
    a rollout plays on OpenSpiel's state alone.
    """
    from gymcts.gymcts_agent import GymctsAgent
    from gymcts.gymcts_env_abc import GymctsABC

    class Env(GymctsABC):
        action_space = gymnasium.spaces.Discrete(game.num_distinct_actions())
        observation_space = gymnasium.spaces.Box(0, 1, (1,))

        def __init__(self) -> None:
            self.board = game.new_initial_state()

        def get_state(self) -> Any:
            return self.board.clone()

        def load_state(self, state: Any) -> None:
            self.board = state.clone()

        def is_terminal(self) -> bool:
            over: bool = self.board.is_terminal()
            return over

        def get_valid_actions(self) -> list[int]:
            found: list[int] = self.board.legal_actions()
            return found

        def action_masks(self) -> Any:
            return np.array(self.board.legal_actions_mask())

        def step(self, action: Any) -> Any:
            self.board.apply_action(action)
            return np.zeros(1), 0.0, self.board.is_terminal(), False, {}

        def rollout(self) -> float:
            while not self.board.is_terminal():
                self.board.apply_action(random.choice(self.board.legal_actions()))
            result: float = self.board.returns()[0]
            return result

    return lambda: GymctsAgent(Env()).vanilla_mcts_search(num_simulations=count)


def gymcts_wrapper_search(make_board: Any, count: int) -> Any:
    """Return a function that plans a move with gymcts for an environment, as its README shows.

    Its wrapper saves states with ``copy.deepcopy``, and plays out with ``step``.
    """
    from gymcts.gymcts_agent import GymctsAgent
    from gymcts.gymcts_deepcopy_wrapper import DeepCopyMCTSGymEnvWrapper

    def mask(env: Any) -> Any:
        board = env.unwrapped
        return board.turns_of_states(board.board[None])[0][0]

    env = DeepCopyMCTSGymEnvWrapper(make_board(), action_mask_fn=mask)
    env.reset(seed=0)
    return lambda: GymctsAgent(env).vanilla_mcts_search(num_simulations=count)


def searcher(cls: Any, env: Any, starts: list[Any], simulations: int, **options: Any) -> Any:
    """Return a function that searches from all `starts` together."""
    planner = cls(env, **options)
    planner.simulations = simulations
    return lambda: planner.plan_batch(starts, budget=10**7, seed=0)


def ways_to_simulate(make_board: Any, own: Any, count: int) -> dict[str, tuple[int, Any]]:
    """Return numbers of simulations, and functions that run so many, on Connect Four.

    `make_board` makes the environment in NumPy, of which `own` is the `PlanEnv`. `count` is the
    simulations for a move.
    """
    from open_spiel.python.algorithms import mcts

    game = pyspiel.load_game("connect_four")
    evaluator = mcts.RandomRolloutEvaluator(1, np.random.RandomState(0))
    python = mcts.MCTSBot(game, 2.0, count, evaluator, solve=True)
    cpp = pyspiel.MCTSBot(
        game, pyspiel.RandomRolloutEvaluator(1, 0), 2.0, count, 1000, True, 0, False
    )
    ways: dict[str, tuple[int, Any]] = {
        "simulation, MCTSBot in Python": (count, lambda: python.step(game.new_initial_state())),
        "simulation, MCTSBot in C++": (count, lambda: cpp.step(game.new_initial_state())),
    }
    theirs = plangym_like.make("openspiel/connect_four")
    for place, env in (("OpenSpiel's game", theirs), ("NumPy's boards", own)):
        name = f"simulation, UCT on {place}"
        search, start = partial(searcher, _UCT, env, rollout=42), env.reset(seed=0)
        ways[name] = count, search([start], count)
        ways[f"{name}, 512 at a time"] = 5 * count, search([start], 5 * count, batch=512)
        ways[f"{name}, 64 games"] = 64 * count, search([start] * 64, count)
    if importlib.util.find_spec("gymcts") is not None:
        ways["simulation, gymcts on OpenSpiel's game"] = count, gymcts_search(game, count)
        search = gymcts_wrapper_search(make_board, count)
        ways["simulation, gymcts on NumPy's boards, with its wrapper"] = count, search
    return ways


def ways_to_evaluate(own: Any, network: Any) -> dict[str, tuple[int, Any]]:
    """Return numbers of evaluations by `network`, and functions that search with so many.

    The games differ by four random moves, because the network computes equal boards once.
    """
    starts = []
    for moves in np.random.default_rng(0).integers(7, size=(64, 4)):
        start = own.reset(seed=0)
        for action in moves:
            start = own.step(action, start.state)
        starts.append(start)
    search = partial(searcher, _PUCT, own, simulations=64, evaluate=network.evaluate)
    singles, together = [search([start]) for start in starts], search(starts)

    def singly() -> None:
        for one in singles:
            one()

    return {
        "evaluation, 64 searches with PUCT, one by one": (64 * 64, singly),
        "evaluation, 64 searches together": (64 * 64, together),
    }


def speeds() -> str:
    """Return a table of the times of simulations and evaluations on Connect Four."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    import connect_four
    import torch

    torch.set_num_threads(1)
    own = plangym_like.make(connect_four.ConnectFour)
    ways = ways_to_simulate(connect_four.ConnectFour, own, 1_000) | ways_to_evaluate(
        own, connect_four.Network()
    )
    calls = {
        name: partial(seconds_of, call, clock=time.process_time) for name, (_, call) in ways.items()
    }
    least = {name: 1e6 * min(x) / ways[name][0] for name, x in in_turn(calls, 5).items()}
    bot = least["simulation, MCTSBot in Python"]
    rows = [(name, f"{time:.1f}", f"{bot / time:.1f}") for name, time in least.items()]
    return "\n".join(table(("what", "CPU time, us", "times as fast as the Python bot"), rows))


def result_table(games: list[dict[str, Any]]) -> str:
    """Return wins, draws and losses of our searches, as a table in Markdown."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for one in games:
        kind = one["game"], one["search"], one["simulations"]
        found.setdefault(kind, []).append(one["result"])
    rows = []
    for kind, each in sorted(found.items()):
        wins, draws, losses = (sum(np.sign(one) == sign for one in each) for sign in (1, 0, -1))
        score = f"{(wins + draws / 2) / len(each):.0%}"
        rows.append((*kind, len(each), wins, draws, losses, score))
    head = ("game", "search", "simulations", "games", "wins", "draws", "losses", "score")
    return "\n".join(table(head, rows))


def main() -> None:
    """Read the command line, play the games that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--games", type=int, default=200, help="for each game and search")
    parser.add_argument("--simulations", type=int, default=100, help="for each move")
    parser.add_argument("--out", type=Path, default=Path("games.jsonl"))
    parser.add_argument("--speed", action="store_true", help="measure times instead")
    args = parser.parse_args()
    if args.speed:
        print(speeds())
        return
    done = []
    if args.out.exists():
        done = [json.loads(line) for line in args.out.read_text().splitlines()]
    names = ("game", "search", "simulations", "number")
    known = {tuple(one[name] for name in names) for one in done}
    for first in range(0, args.games, TOGETHER):
        for game in GAMES:
            for search in SEARCHES:
                kind = game, search, args.simulations
                numbers = range(first, min(first + TOGETHER, args.games))
                missing = [number for number in numbers if (*kind, number) not in known]
                if not missing:
                    continue
                with plangym_like.make(f"openspiel/{game}") as env:
                    planner = SEARCHES[search](env, batch=1, rollout=GAMES[game])
                    planner.simulations = args.simulations
                    found = play_games(planner, pyspiel.load_game(game), args.simulations, missing)
                for number, result in sorted(found.items()):
                    done.append(dict(zip(names, (*kind, number), strict=True)) | result)
                    with args.out.open("a") as file:
                        file.write(json.dumps(done[-1]) + "\n")
                print(result_table(done), flush=True)
    print(result_table(done))


if __name__ == "__main__":
    main()
