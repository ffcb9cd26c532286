"""OpenSpiel: its sequential games of perfect information.

Rows of all games hold their moves (see `plangym_like.envs.game_positions`). Copying a state of
OpenSpiel takes about a microsecond; playing its moves again takes up to ten for each move.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pyspiel
from numpy.typing import NDArray

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.game_positions import Rules
from plangym_like.envs.games import GameSimulator
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count, did_you_mean

PREFIX = "openspiel/"
_TYPE, _STATE = pyspiel.GameType, pyspiel.State


class OpenSpielRules(Rules):
    """The rules of a game of OpenSpiel; boards are its states.

    Parameters
    ----------
    game : pyspiel.Game
        A game that `refusal` does not refuse.
    """

    render_modes = ("ansi",)
    # Functions of OpenSpiel's states; a method that calls them would take twice as long.
    apply = staticmethod(_STATE.apply_action)
    after = staticmethod(_STATE.child)
    copy = staticmethod(_STATE.clone)
    turn = staticmethod(_STATE.current_player)
    legal = staticmethod(_STATE.legal_actions)

    def __init__(self, game: Any) -> None:
        kind = game.get_type()
        self._game, self.title = game, str(game)
        self.library = f"open_spiel {importlib.metadata.version('open_spiel')}"
        self.n_players, self.n_actions = game.num_players(), game.num_distinct_actions()
        self.steps_have_chance = kind.chance_mode == _TYPE.ChanceMode.EXPLICIT_STOCHASTIC
        # Chess960 is called deterministic, but begins with a position that chance chooses.
        self.has_chance = self.steps_have_chance or game.new_initial_state().is_chance_node()
        self.pays_at_end = kind.reward_model != _TYPE.RewardModel.REWARDS
        # Before the end, the score may be as low as the lowest one of a whole game.
        lowest = 0.0 if self.pays_at_end else game.min_utility()
        self.highest = game.max_utility() - lowest
        self.n_codes, self.longest = self.n_actions, game.max_game_length()
        if self.has_chance:
            self.n_codes = max(self.n_actions, game.max_chance_outcomes())
            self.longest = game.max_history_length()
        parameters = game.get_parameters()  # all of them
        parameters.pop("ansi_color_output", None)
        self.key = f"{kind.short_name} {sorted(parameters.items())}"
        self._shape = tuple(game.observation_tensor_shape())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._shape, np.float32)
        # This buffer is filled ten times as fast as OpenSpiel makes a list of floats.
        self._observer: Any = None
        with contextlib.suppress(pyspiel.SpielError, AttributeError):
            self._observer = pyspiel._Observation(game, game.make_observer({}))
            self._tensor = np.frombuffer(self._observer, np.float32).reshape(self._shape)

    def first(self) -> Any:
        return self._game.new_initial_state()

    def returns(self, board: Any) -> list[float]:
        # Some games have a score before the end; and `rewards` counts those of 2048 twice.
        found: list[float] = board.rewards() if self.pays_at_end else board.returns()
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
        return "its players move at the same time, and here one moves after the other"
    if kind.dynamics != _TYPE.Dynamics.SEQUENTIAL:
        return "it is a mean field game, which has a distribution of players"
    if kind.information != _TYPE.Information.PERFECT_INFORMATION:
        return (
            "it has imperfect information: a search from a state would know what the player to "
            "move does not"
        )
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


def _check(short: str, parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse sizes that are not positive: a board without rows would end the process."""
    usual = known[short].parameter_specification if short in known else {}
    for name, value in parameters.items():
        if isinstance(value, dict):  # a game inside of this game
            _check(str(value.get("name")), value, known)
        elif type(value) is int and type(usual.get(name)) is int and usual[name] > 0:
            as_count(f"{name} of OpenSpiel's {short}", value)


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
    try:
        given = pyspiel.game_parameters_from_string(name) if short != name else {}
        given.pop("name", None)
        given.update(parameters)
        _check(short, given, known)
        game = pyspiel.load_game(short, given)
    except InputError:
        raise
    except Exception as error:  # of many kinds, those of the binding among them
        first_line = str(error).strip().partition("\n")[0]
        raise InputError(f"OpenSpiel cannot load {name} with {parameters}: {first_line}") from error
    if why := refusal(game.get_type()):
        raise InputError(f"OpenSpiel's {short} cannot be planned over: {why}")
    return game


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
    prefix = PREFIX
    obs_types = ("coords",)

    def make_rules(self, name: str, render_mode: str | None, options: dict[str, Any]) -> Rules:
        """Return the rules of the game `name`; `options` are its parameters."""
        game = load_game(name, **options)
        try:
            return OpenSpielRules(game)
        except Exception as error:
            raise InputError(f"OpenSpiel's {game} has no board: {error}") from error


class OpenSpielEnv(FamilyEnv):
    """A `PlanEnv` of a game of OpenSpiel.

    >>> env = OpenSpielEnv("openspiel/tic_tac_toe")
    >>> state, obs, info = env.reset()
    >>> step = env.step(4, state)
    >>> step.info["to_play"], step.info["action_mask"]
    (1, array([1, 1, 1, 1, 0, 1, 1, 1, 1], dtype=int8))
    """

    simulator_class = OpenSpielSimulator
