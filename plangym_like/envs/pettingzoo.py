"""PettingZoo's classic games of perfect information: chess, Connect Four, Go and tic-tac-toe.

Rows hold the moves of a game (see `plangym_like.envs.games`). These environments cannot be pickled
or copied by `copy.deepcopy`: an `EzPickle` comes back as it was made, with an empty board. So a
copy is made here of the attributes that a step changes. The games are used without PettingZoo's
wrappers, which end a game after an illegal move; here it is refused.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.games import OVER, GameGym, GameSimulator, Rules
from plangym_like.envs.wrapping import call_source
from plangym_like.errors import InputError
from plangym_like.support.arguments import did_you_mean, misfit
from plangym_like.support.fork_safety import new_lock

PREFIX = "pettingzoo/"
# Game -> its module in ``pettingzoo.classic``, and the most moves of a game, if it is known.
GAMES: dict[str, tuple[str, int | None]] = {
    "chess_v6": ("chess.chess", None),
    "connect_four_v3": ("connect_four.connect_four", 42),
    "go_v5": ("go.go", None),
    "tictactoe_v3": ("tictactoe.tictactoe", 9),
}
_IMPERFECT = (
    "it has imperfect information: a search from its state would know what the player to move does "
    "not"
)
_REFUSED = {
    "gin_rummy_v4": _IMPERFECT,
    "hanabi_v5": _IMPERFECT,
    "leduc_holdem_v4": _IMPERFECT,
    "rps_v2": "its players move at the same time, and here one moves after the other",
    "texas_holdem_v4": _IMPERFECT,
    "texas_holdem_no_limit_v6": _IMPERFECT,
}
# The game of Go keeps the size of its boards in globals of a module. They are set while a method of
# a board is called, and restored after that, because others may use the module, too.
_GO_BASE = "pettingzoo.classic.go.go_base"
_GO_GLOBALS = ("N", "ALL_COORDS", "EMPTY_BOARD", "NEIGHBORS", "DIAGONALS")
_go_globals: dict[int, dict[str, Any]] = {}
_go_lock = new_lock()
# Folders of other environments, in which all agents act in each step.
_SIMULTANEOUS = ("atari", "butterfly", "magent", "mpe", "sisl")


class PettingZooRules(Rules):
    """The rules of a game of PettingZoo; boards are its environments, with a reset behind them.

    Parameters
    ----------
    title : str
        The name of the game, with the parameters that change its rules.
    game : pettingzoo.AECEnv
        The environment, without PettingZoo's wrappers.
    longest : int, optional
        The largest number of moves.
    """

    def __init__(self, title: str, game: Any, longest: int | None) -> None:
        self._game, self.title, self.longest = game, title, longest
        self.library = f"pettingzoo {importlib.metadata.version('pettingzoo')}"
        self.render_modes = tuple(m for m in game.metadata["render_modes"] if m != "human")
        self._players = list(game.possible_agents)
        self.n_players = len(self._players)
        first = self._players[0]
        self.n_actions = self.n_codes = int(game.action_space(first).n)
        self.observation_space = game.observation_space(first)["observation"]
        self.board_nbytes, self.move_nbytes = _board_nbytes(game)
        # The last board that was looked at, the player, and what the player observes.
        self._seen: tuple[Any, int, Any] = (None, 0, None)

    def first(self) -> Any:
        _call(self._game, self._game.reset, 0)
        return _copied(self._game)

    def after(self, board: Any, move: int) -> Any:
        following = _copied(board)
        self.apply(following, move)
        return following

    def apply(self, board: Any, move: int) -> None:
        self._seen = (None, 0, None)
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
        if self._seen[0] is not board or self._seen[1] != player:
            shown = _call(board, board.observe, self._players[player])
            self._seen = board, player, shown
        return self._seen[2]

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
        if name.partition("/")[0] in _SIMULTANEOUS:
            why = "its agents act in real time, and here players move in turn"
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
    game: AECEnv[Any, Any, Any] = _made(module.raw_env, options)
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

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "ansi"]}  # type: ignore[misc]

    def __init__(self, name: str, render_mode: str | None = None, **options: Any) -> None:
        mode = None if render_mode == "human" else render_mode
        game, longest = load_game(name, render_mode=mode, **options)
        given = ",".join(f"{key}={value!r}" for key, value in sorted(options.items()))
        super().__init__(PettingZooRules(f"{name}({given})", game, longest), render_mode)


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

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game as a Gymnasium environment."""
        make = functools.partial(PettingZooGym, str(self.name).removeprefix(PREFIX))
        mode = {} if self.render_mode is None else {"render_mode": self.render_mode}
        env: gymnasium.Env[Any, Any] = call_source(make, {**mode, **self.env_kwargs})
        return env


class PettingZooEnv(FamilyEnv):
    """A `PlanEnv` of a game of PettingZoo.

    >>> env = PettingZooEnv("pettingzoo/connect_four_v3")
    >>> state, obs, info = env.reset()
    >>> obs.shape, info["to_play"], env.step(3, state).info["to_play"]
    ((6, 7, 2), 0, 1)
    """

    simulator_class = PettingZooSimulator
