"""PettingZoo's classic games of perfect information: chess, Connect Four, Go and tic-tac-toe.

Rows hold the moves of a game (see `plangym_like.envs.games`). These environments cannot be pickled
or copied by `copy.deepcopy`: an `EzPickle` comes back as it was made, with an empty board. So a
copy is made here of the attributes that a step changes. The games are used without PettingZoo's
wrappers, which end a game after an illegal move; here it is refused.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pettingzoo
from numpy.typing import NDArray
from pettingzoo import AECEnv

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.games import (
    IMPERFECT,
    OVER,
    SIMULTANEOUS,
    GameGym,
    GameSimulator,
    Rules,
)
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
_REFUSED = {
    "gin_rummy_v4": IMPERFECT,
    "hanabi_v5": IMPERFECT,
    "leduc_holdem_v4": IMPERFECT,
    "rps_v2": SIMULTANEOUS,
    "texas_holdem_v4": IMPERFECT,
    "texas_holdem_no_limit_v6": IMPERFECT,
}
# The game of Go keeps the size of its boards in globals of a module. They are set while a method of
# a board is called, and restored after that, because others may use the module, too.
_GO_BASE = "pettingzoo.classic.go.go_base"
_GO_GLOBALS = ("N", "ALL_COORDS", "EMPTY_BOARD", "NEIGHBORS", "DIAGONALS")
_go_globals: dict[int, dict[str, Any]] = {}
_go_lock = new_lock()
# Folders of other environments, in which all agents act in each step.
_FOLDERS = ("atari", "butterfly", "magent", "mpe", "sisl")


class PettingZooRules(Rules):
    """The rules of a game of PettingZoo; boards are its environments, with a reset behind them.

    Parameters
    ----------
    game : pettingzoo.AECEnv
        The environment, without PettingZoo's wrappers.
    longest : int, optional
        The largest number of moves.
    """

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
        self.board_nbytes, self.move_nbytes = _board_nbytes(game)
        # The last board that was looked at, the player, and what the player observes.
        self._last_look: tuple[Any, int, Any] = (None, 0, None)

    def first(self) -> Any:
        _call(self._game, self._game.reset, 0)
        return _copied(self._game)

    def after(self, board: Any, move: int) -> Any:
        following = _copied(board)
        self.apply(following, move)
        return following

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
        # These games give rewards at their end only.
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


def _board_nbytes(game: Any) -> tuple[int, int]:
    """Return how many bytes a board of `game` needs at first, and in addition for each move.

    The test of the memory of kept positions measures them.
    """
    name = game.metadata["name"]
    if name == "chess_v6":
        return 12_000, 240
    return (6000 + 72 * game._N**2 if name == "go_v5" else 2600), 0


def _call(board: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, a method of `board`; in a game of Go, with the globals for its size."""
    if not hasattr(board, "_N"):
        return function(*args)
    with _go_lock:
        base: Any = importlib.import_module(_GO_BASE)
        if base.N == board._N:
            return function(*args)
        before = {name: getattr(base, name) for name in _GO_GLOBALS}
        vars(base).update(_go_globals[board._N])
        try:
            return function(*args)
        finally:
            vars(base).update(before)


def _made(make: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return a new game; keep the globals that the game of Go sets, and restore those before."""
    with _go_lock:
        base: Any = sys.modules.get(_GO_BASE)
        before = {name: getattr(base, name) for name in _GO_GLOBALS} if base else {}
        try:
            game = make(**options)
            if base and hasattr(game, "_N"):
                _go_globals[game._N] = {name: getattr(base, name) for name in _GO_GLOBALS}
            return game
        finally:
            if base:
                vars(base).update(before)


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


def _simultaneous() -> set[str]:
    """Return the names of PettingZoo's environments in which all agents act in each step."""
    root = Path(pettingzoo.__file__).parent
    return {each.stem for folder in _FOLDERS for each in (root / folder).glob("*_v*.py")}


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


def load_game(name: str, **options: Any) -> tuple[Any, int | None]:
    """Return PettingZoo's environment `name`, without wrappers, and the most moves of a game.

    Raises
    ------
    InputError
        There is no such game, or it is refused, or has no such options.
    """
    short = name.removeprefix("classic/")
    if short not in GAMES:
        why = _REFUSED.get(short, "")
        if short.rpartition("/")[2] in _simultaneous() or short.partition("/")[0] in _FOLDERS:
            why = SIMULTANEOUS
        if not why:
            raise InputError(
                f"there is no game {name!r} of PettingZoo here{did_you_mean(short, GAMES)}; the "
                f"games are {', '.join(GAMES)}"
            )
        raise InputError(f"PettingZoo's {short} cannot be planned over: {why}")
    place, longest = GAMES[short]
    module = importlib.import_module(f"pettingzoo.classic.{place}")
    if reason := misfit(module.raw_env, **options):
        raise InputError(f"PettingZoo's {short} cannot be made: {reason}")
    game: AECEnv[Any, Any, Any] = _made(module.raw_env, _checked(module.raw_env, options))
    if (found := game.metadata["name"]) != short:
        raise InputError(f"this version of PettingZoo has {found}, not {short}")
    return game, longest


class PettingZooGym(GameGym):
    """A game of PettingZoo as a Gymnasium environment; it observes its ``observation``.

    Parameters
    ----------
    name : str
        As in `load_game`, like `options`.
    render_mode : {"rgb_array", "ansi"}, optional
        Only chess has ``"ansi"``.
    """

    def __init__(self, name: str, render_mode: str | None = None, **options: Any) -> None:
        mode = None if render_mode == "human" else render_mode
        game, longest = load_game(name, render_mode=mode, **options)
        super().__init__(PettingZooRules(game, longest), render_mode)


class PettingZooSimulator(GameSimulator):
    """A simulator of one game of PettingZoo.

    Parameters
    ----------
    name : str
        ``"pettingzoo/<game>"``.
    kwargs
        As in `GameSimulator`. All other arguments are passed to the game.

    Raises
    ------
    InputError
        There is no such game, or it is refused.
    """

    family = "PETZ"
    prefix, gym_class = PREFIX, PettingZooGym


class PettingZooEnv(FamilyEnv):
    """A `PlanEnv` of a game of PettingZoo.

    >>> env = PettingZooEnv("pettingzoo/connect_four_v3")
    >>> state, obs, info = env.reset()
    >>> obs.shape, info["to_play"], env.step(3, state).info["to_play"]
    ((6, 7, 2), 0, 1)
    """

    simulator_class = PettingZooSimulator
