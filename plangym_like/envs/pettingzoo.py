"""PettingZoo's classic games of perfect information: chess, Connect Four, Go and tic-tac-toe.

Rows hold the moves of a game (see `plangym_like.envs.game_positions`). These environments cannot be
pickled or copied by `copy.deepcopy`: an `EzPickle` comes back as it was made, with an empty board.
So a copy is made here of the attributes that a step changes. The games are used without
PettingZoo's wrappers, which end a game after an illegal move; here it is refused.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pettingzoo  # noqa: F401
from numpy.typing import NDArray

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.game_positions import OVER, Rules
from plangym_like.envs.games import GameSimulator
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count, as_number, did_you_mean, misfit
from plangym_like.support.fork_safety import new_lock

PREFIX = "pettingzoo/"
# Game -> its module in ``pettingzoo.classic``, and the most moves of a game, if it is known.
GAMES: dict[str, tuple[str, int | None]] = {
    "chess_v6": ("chess.chess", None),
    "connect_four_v3": ("connect_four.connect_four", 42),
    "go_v5": ("go.go", None),
    "tictactoe_v3": ("tictactoe.tictactoe", 9),
}
# The game of Go keeps the size of its boards in globals of this module, for all of its games.
_GO_BASE = "pettingzoo.classic.go.go_base"
_go_lock = new_lock()


class PettingZooRules(Rules):
    """The rules of a game of PettingZoo; boards are its environments, with a reset behind them.

    Parameters
    ----------
    game : pettingzoo.AECEnv
        The environment, without PettingZoo's wrappers.
    longest : int, optional
        The largest number of moves.
    """

    pays_at_end = True

    def __init__(self, game: Any, longest: int | None) -> None:
        self._game, self.longest, self.title = game, longest, game.metadata["name"]
        if hasattr(game, "_N"):
            self.title += f"(board_size={game._N},komi={game._komi})"
        self.key = self.title
        self.library = f"pettingzoo {importlib.metadata.version('pettingzoo')}"
        self.render_modes = tuple(m for m in game.metadata["render_modes"] if m != "human")
        self._players = list(game.possible_agents)
        self.n_players = len(self._players)
        first = self._players[0]
        self.n_actions = self.n_codes = int(game.action_space(first).n)
        self.observation_space = game.observation_space(first)["observation"]
        # The last board that was looked at, the player, and what the player observes.
        self._last_look: tuple[Any, int, Any] = (None, 0, None)

    def first(self) -> Any:
        _call(self._game, self._game.reset, 0)
        return _copied(self._game)

    def apply(self, board: Any, move: int) -> None:
        self._last_look = (None, 0, None)
        _call(board, board.step, move)

    def copy(self, board: Any) -> Any:
        return _copied(board)

    def turn(self, board: Any) -> int:
        if any(board.terminations.values()) or any(board.truncations.values()):
            return OVER
        return self._players.index(board.agent_selection)

    def legal(self, board: Any) -> list[int]:
        mask = self._look(board, self._players.index(board.agent_selection))["action_mask"]
        found: list[int] = np.flatnonzero(mask).tolist()
        return found

    def returns(self, board: Any) -> list[float]:
        return [float(board.rewards[player]) for player in self._players]

    def observe(self, board: Any, player: int, out: NDArray[Any]) -> None:
        out[...] = self._look(board, player)["observation"]

    def _look(self, board: Any, player: int) -> Any:
        """Return PettingZoo's observation, which has the legal moves, too, and takes long."""
        if self._last_look[0] is not board or self._last_look[1] != player:
            look = _call(board, board.observe, self._players[player])
            self._last_look = board, player, look
        return self._last_look[2]

    def render(self, board: Any, mode: str) -> Any:
        return _call(board, board.render)


def _call(board: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, a method of `board`; in a game of Go, with the globals for its size."""
    if not hasattr(board, "_N"):
        return function(*args)
    with _go_lock:
        if sys.modules[_GO_BASE].N != board._N:
            board._overwrite_go_global_variables(board._N)
        return function(*args)


def _copied(thing: Any) -> Any:
    """Return a copy of `thing`, an object of PettingZoo, with copies of what steps change in place.

    These are lists, dicts, other objects of PettingZoo, and the board of the package ``chess``.
    Steps replace all other attributes, such as arrays.
    """
    new = object.__new__(type(thing))
    for name, value in vars(thing).items():
        module = type(value).__module__.partition(".")[0]
        if type(value) in (list, dict) or module == "chess":
            value = value.copy()
        elif module == "pettingzoo" and hasattr(value, "__dict__"):
            value = _copied(value)
        new.__dict__[name] = value
    return new


def all_ids() -> list[str]:
    """Return the ids of all games."""
    return [PREFIX + name for name in GAMES]


def _checked(make: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` of a game as numbers of Python."""
    usual = inspect.signature(make).parameters
    checked = dict(options)
    for name, value in options.items():
        if isinstance(usual[name].default, int):
            checked[name] = as_count(name, value)
        elif isinstance(usual[name].default, float):
            checked[name] = as_number(name, value)
    return checked


class PettingZooSimulator(GameSimulator):
    """A simulator of one game of PettingZoo, which observes its ``observation``.

    Parameters
    ----------
    name : str
        ``"pettingzoo/<game>"``.
    kwargs
        As in `GameSimulator`. All other arguments are passed to the game.

    Raises
    ------
    InputError
        There is no such game, or it has no such options.
    """

    family = "PETZ"
    prefix = PREFIX

    def make_rules(self, name: str, render_mode: str | None, options: dict[str, Any]) -> Rules:
        """Return the rules of the game `name` of PettingZoo, without PettingZoo's wrappers."""
        short = name.removeprefix("classic/")
        if short not in GAMES:
            raise InputError(
                f"there is no game {name!r} of PettingZoo here{did_you_mean(short, GAMES)}; the "
                f"games are {', '.join(GAMES)}. In the others, players do not see the whole "
                "position, or move at the same time"
            )
        place, longest = GAMES[short]
        module = importlib.import_module(f"pettingzoo.classic.{place}")
        mode = None if render_mode == "human" else render_mode
        if reason := misfit(module.raw_env, render_mode=mode, **options):
            raise InputError(f"PettingZoo's {short} cannot be made: {reason}")
        with _go_lock:
            game = module.raw_env(render_mode=mode, **_checked(module.raw_env, options))
        if (found := game.metadata["name"]) != short:
            raise InputError(f"this version of PettingZoo has {found}, not {short}")
        return PettingZooRules(game, longest)


class PettingZooEnv(FamilyEnv):
    """A `PlanEnv` of a game of PettingZoo.

    >>> env = PettingZooEnv("pettingzoo/connect_four_v3")
    >>> state, obs, info = env.reset()
    >>> obs.shape, info["to_play"], env.step(3, state).info["to_play"]
    ((6, 7, 2), 0, 1)
    """

    simulator_class = PettingZooSimulator
