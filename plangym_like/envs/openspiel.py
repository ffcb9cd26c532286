"""OpenSpiel: its sequential games of perfect information.

Rows of all games hold their moves (see `plangym_like.envs.games`). Copying a state of OpenSpiel
takes about a microsecond; playing its moves again takes up to ten for each move.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import math
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pyspiel
from numpy.typing import NDArray

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.games import (
    CHANCE,
    IMPERFECT,
    OVER,
    SIMULTANEOUS,
    GameGym,
    GameSimulator,
    Rules,
)
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count, did_you_mean

PREFIX = "openspiel/"
_TYPE = pyspiel.GameType
# Games whose boards need more memory than others: the bytes of a board at the beginning of a game,
# and in addition for each move. The test of the memory of kept positions measures them.
_LARGE_BOARDS = {
    "antichess": (1500, 84),
    "backgammon": (1000, 150),
    "banqi": (1000, 72),
    "chess": (1500, 84),
    "chinese_checkers": (1000, 190),
    "crazyhouse": (1500, 84),
    "cursor_go": (8800, 80),
    "go": (8800, 88),
    "lines_of_action": (1400, 200),
    "maedn": (1000, 100),
    "oware": (900, 60),
    "shogi": (1500, 72),
    "twixt": (6800, 48),
    "ultimate_tic_tac_toe": (1900, 60),
    "xiangqi": (1500, 72),
}


class OpenSpielRules(Rules):
    """The rules of a game of OpenSpiel; boards are its states.

    Parameters
    ----------
    game : pyspiel.Game
        A game that `refusal` does not refuse.
    """

    render_modes = ("ansi",)

    def __init__(self, game: Any) -> None:
        kind = game.get_type()
        self._game, self.title = game, str(game)
        self.library = f"open_spiel {importlib.metadata.version('open_spiel')}"
        self.n_players, self.n_actions = game.num_players(), game.num_distinct_actions()
        # Chess960 is called deterministic, but begins with a position that chance chooses.
        self.has_chance = (
            kind.chance_mode == _TYPE.ChanceMode.EXPLICIT_STOCHASTIC
            or game.new_initial_state().is_chance_node()
        )
        self._has_score = kind.reward_model == _TYPE.RewardModel.REWARDS
        self.n_codes, self.longest = self.n_actions, game.max_game_length()
        if self.has_chance:
            self.n_codes = max(self.n_actions, game.max_chance_outcomes())
            self.longest = game.max_history_length()
        parameters = game.get_parameters()  # all of them
        parameters.pop("ansi_color_output", None)
        self.key = f"{kind.short_name} {sorted(parameters.items())}"
        self._shape = tuple(game.observation_tensor_shape())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._shape, np.float32)
        self.board_nbytes, self.move_nbytes = 640 + 2 * math.prod(self._shape), 48
        for name in re.findall(r"\w+(?=\()", self.title):  # misere, and the game inside of it
            if name in _LARGE_BOARDS:
                self.board_nbytes, self.move_nbytes = _LARGE_BOARDS[name]
        # This buffer is filled ten times as fast as OpenSpiel makes a list of floats.
        self._observer: Any = None
        with contextlib.suppress(pyspiel.SpielError, AttributeError):
            self._observer = pyspiel._Observation(game, game.make_observer({}))
            self._tensor = np.frombuffer(self._observer, np.float32).reshape(self._shape)

    def first(self) -> Any:
        return self._game.new_initial_state()

    def after(self, board: Any, move: int) -> Any:
        return board.child(move)

    def apply(self, board: Any, move: int) -> None:
        board.apply_action(move)

    def copy(self, board: Any) -> Any:
        return board.clone()

    def turn(self, board: Any) -> int:
        player: int = board.current_player()
        if player >= 0:
            return player
        return CHANCE if player == pyspiel.PlayerId.CHANCE else OVER

    def legal(self, board: Any) -> list[int]:
        found: list[int] = board.legal_actions()
        return found

    def returns(self, board: Any) -> list[float]:
        # Some games have a score before the end; and `rewards` counts those of 2048 twice.
        found: list[float] = board.returns() if self._has_score else board.rewards()
        return found

    def chance_outcomes(self, board: Any) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = board.chance_outcomes()
        return found

    def observe(self, board: Any, player: int, out: NDArray[Any]) -> None:
        if self._observer is None:
            out[...] = np.reshape(board.observation_tensor(player), self._shape)
        else:
            self._observer.set_from(board, player)
            out[...] = self._tensor

    def name_of(self, board: Any, move: int) -> str:
        name: str = board.action_to_string(board.current_player(), move)
        return name

    def render(self, board: Any, mode: str) -> str:
        return str(board)


def refusal(kind: Any) -> str:
    """Return why games of the type `kind` cannot be played here; an empty text if they can."""
    if kind.dynamics == _TYPE.Dynamics.SIMULTANEOUS:
        return SIMULTANEOUS
    if kind.dynamics != _TYPE.Dynamics.SEQUENTIAL:
        return "it is a mean field game, which has a distribution of players"
    if kind.information != _TYPE.Information.PERFECT_INFORMATION:
        return IMPERFECT
    if kind.chance_mode == _TYPE.ChanceMode.SAMPLED_STOCHASTIC:
        return "it draws chance inside, from a generator that all of its states share"
    if not kind.provides_observation_tensor:
        return "it has no observation tensor"
    return ""


def all_ids() -> list[str]:
    """Return the ids of all games that can be made without parameters."""
    return sorted(
        PREFIX + kind.short_name
        for kind in pyspiel.registered_games()
        if kind.default_loadable and not refusal(kind)
    )


def _checked(known: Mapping[str, Any], short: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parameters` of the game `short` as numbers of Python.

    OpenSpiel itself does not check sizes; a board without rows ends the process.
    """
    usual = known[short].parameter_specification if short in known else {}
    checked = {}
    for name, value in parameters.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, dict):  # a game inside of this game
            value = _checked(known, str(value.get("name")), value)
        default = usual.get(name)
        if type(default) is float and type(value) is int:
            value = float(value)
        if type(default) is int and default > 0 and type(value) is int:
            value = as_count(f"{name} of OpenSpiel's {short}", value)
        if type(value) is int and abs(value) >= 1 << 31:
            raise InputError(f"{name} of OpenSpiel's {short} must be less than 2**31, got {value}")
        checked[name] = value
    return checked


def load_game(name: str, **parameters: Any) -> Any:
    """Return OpenSpiel's game `name`, such as ``"hex"`` or ``"hex(board_size=5)"``.

    Raises
    ------
    InputError
        There is no such game, it has no such parameters, or it is refused.
    """
    short = name.partition("(")[0]
    if short.startswith("python_"):  # registered when they are imported
        importlib.import_module("open_spiel.python.games")
    known = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if short not in known:
        raise InputError(f"OpenSpiel has no game {short!r}{did_you_mean(short, known)}")
    if short != name and not name.endswith(")"):
        raise InputError(f"the parameters of OpenSpiel's game {name!r} must end with a bracket")
    try:
        given = pyspiel.game_parameters_from_string(name) if short != name else {}
        given.pop("name", None)
        game = pyspiel.load_game(short, _checked(known, short, {**given, **parameters}))
    except InputError:
        raise
    except Exception as error:  # of many kinds, those of the binding among them
        first_line = str(error).strip().partition("\n")[0]
        raise InputError(f"OpenSpiel cannot load {name} with {parameters}: {first_line}") from error
    if why := refusal(game.get_type()):
        raise InputError(f"OpenSpiel's {short} cannot be planned over: {why}")
    return game


class OpenSpielGym(GameGym):
    """A game of OpenSpiel as a Gymnasium environment.

    Parameters
    ----------
    name : str
        As in `load_game`, like `parameters`.
    render_mode : {"ansi"}, optional
    """

    def __init__(self, name: str, render_mode: str | None = None, **parameters: Any) -> None:
        game = load_game(name, **parameters)
        try:
            rules = OpenSpielRules(game)
        except Exception as error:
            raise InputError(f"OpenSpiel's {game} has no board: {error}") from error
        super().__init__(rules, render_mode)


class OpenSpielSimulator(GameSimulator):
    """A simulator of one game of OpenSpiel.

    Parameters
    ----------
    name : str
        ``"openspiel/<game>"``.
    kwargs
        As in `GameSimulator`. All other arguments are parameters of the game.

    Raises
    ------
    InputError
        OpenSpiel cannot load the game, or it is refused.
    """

    family = "SPIE"
    prefix, gym_class = PREFIX, OpenSpielGym
    obs_types = ("coords",)


class OpenSpielEnv(FamilyEnv):
    """A `PlanEnv` of a game of OpenSpiel.

    >>> env = OpenSpielEnv("openspiel/tic_tac_toe")
    >>> state, obs, info = env.reset()
    >>> step = env.step(4, state)
    >>> step.info["to_play"], step.info["action_mask"]
    (1, array([1, 1, 1, 1, 0, 1, 1, 1, 1], dtype=int8))
    """

    simulator_class = OpenSpielSimulator
