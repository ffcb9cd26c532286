"""Small games of several players with known answers; workers import them from here."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Lines(gymnasium.Env[Any, Any]):
    """Two players put stones on a board; who first has `needed` stones in a line wins.

    With `falls`, an action is a column, and a stone falls to its lowest free place, as in Connect
    Four. The observation is the board: 0 is free, 1 and 2 are the stones of the players 0 and 1.
    """

    rows, columns, needed, falls = 3, 3, 3, False
    loses_by_mistakes = False
    state_attributes = (("board", np.int8, (9,)),)

    def __init__(self) -> None:
        size = self.rows * self.columns
        self.observation_space = spaces.Box(0, 2, (size,), np.int8)
        self.action_space = spaces.Discrete(self.columns if self.falls else size)

    @classmethod
    @functools.cache
    def lines(cls) -> Any:
        """Return the places of each line, ``(L, needed)``."""
        board = np.arange(cls.rows * cls.columns).reshape(cls.rows, cls.columns)
        found = []
        for row in range(cls.rows):
            for column in range(cls.columns):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    places = [(row + down * i, column + right * i) for i in range(cls.needed)]
                    if all(0 <= r < cls.rows and 0 <= c < cls.columns for r, c in places):
                        found.append([board[place] for place in places])
        return np.array(found)

    @classmethod
    def legal(cls, boards: Any) -> Any:
        """Return which actions are legal on boards ``(N, size)``; the bottom row is the last."""
        free = boards == 0
        return free[:, : cls.columns] if cls.falls else free

    @staticmethod
    def to_play(boards: Any) -> Any:
        """Return who moves on boards ``(N, size)``."""
        return (boards != 0).sum(axis=1) % 2

    @classmethod
    def after(cls, boards: Any, actions: Any) -> tuple[Any, Any, Any]:
        """Return the boards after actions, the rewards of those who moved, and the ends.

        Who takes an action that is not legal loses at once.
        """
        boards, actions = boards.copy(), np.asarray(actions)
        numbers = np.arange(len(boards))
        wrong = ~cls.legal(boards)[numbers, actions]
        before = boards[wrong]
        stones = cls.to_play(boards) + 1
        places = actions
        if cls.falls:
            free = (boards.reshape(len(boards), cls.rows, cls.columns) == 0).sum(axis=1)
            places = (free[numbers, actions] - 1) * cls.columns + actions
        boards[numbers, places] = stones
        boards[wrong] = before
        won = (boards[:, cls.lines()] == stones[:, None, None]).all(axis=2).any(axis=1)
        rewards = np.where(wrong, -1.0, won)
        return boards, rewards, won | wrong | (boards != 0).all(axis=1)

    def info(self) -> dict[str, Any]:
        board = self.board[None]
        mask = self.legal(board)[0].astype(np.int8)
        return {"action_mask": mask, "to_play": int(self.to_play(board)[0])}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.board = np.zeros(self.rows * self.columns, np.int8)
        return self.board.copy(), self.info()

    def step(self, action: Any) -> Any:
        if not self.loses_by_mistakes and not self.legal(self.board[None])[0, int(action)]:
            raise ValueError("this action is not legal")
        boards, rewards, ended = self.after(self.board[None], [int(action)])
        self.board = boards[0]
        return self.board.copy(), float(rewards[0]), bool(ended[0]), False, self.info()


class TicTacToe(Lines):
    """The usual board."""


class ConnectFour(Lines):
    """The usual board of 6 by 7."""

    rows, columns, needed, falls = 6, 7, 4, True
    state_attributes = (("board", np.int8, (42,)),)


class _Fast(Lines):
    """The same without infos, many states at once; see `rules`.

    Actions that are not legal are tried when the environment is made, so they must not raise.
    """

    loses_by_mistakes = True

    def info(self) -> dict[str, Any]:
        return {}

    def step_states(self, boards: Any, actions: Any) -> Any:
        after, rewards, ended = self.after(boards, actions)
        return after, after, rewards, ended, np.zeros(len(boards), bool)


class FastTicTacToe(_Fast, TicTacToe):
    pass


class FastConnectFour(_Fast, ConnectFour):
    pass


class SixByFour(FastConnectFour):
    """Connect Four with six columns and four rows: the second player wins."""

    rows, columns = 4, 6
    state_attributes = (("board", np.int8, (24,)),)


def rules(game: type[Lines]) -> dict[str, Any]:
    """Return the options of planners for a game without infos."""

    def boards(obs: Any, states: Any) -> Any:
        return np.zeros((len(states), game.rows * game.columns), np.int8) if obs is None else obs

    return {
        "legal": lambda obs, infos, states: game.legal(boards(obs, states)),
        "to_play": lambda obs, infos, states: game.to_play(boards(obs, states)),
    }


class Nim(gymnasium.Env[Any, Any]):
    """Take 1 to 3 from one of three heaps; who takes the last one wins."""

    action_space = spaces.Discrete(9)
    observation_space = spaces.Dict(
        heaps=spaces.Box(0, 3, (3,), np.int64), action_mask=spaces.MultiBinary(9)
    )
    state_attributes = (("heaps", np.int64, (3,)), ("player", int))

    def _observe(self) -> Any:
        mask = (self.heaps[:, None] >= np.arange(1, 4)).astype(np.int8).ravel()
        return {"heaps": self.heaps.copy(), "action_mask": mask}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.heaps, self.player = np.array((options or {}).get("heaps", (1, 2, 3))), 0
        return self._observe(), {"to_play": self.player}

    def step(self, action: Any) -> Any:
        heap, number = divmod(int(action), 3)
        if self.heaps[heap] <= number:
            raise ValueError("this action is not legal")
        self.heaps = self.heaps.copy()
        self.heaps[heap] -= number + 1
        self.player = 1 - self.player
        ended = not self.heaps.any()
        return self._observe(), float(ended), ended, False, {"to_play": self.player}


class Script(gymnasium.Env[Any, Any]):
    """Two players move in turn; `ends` has all games, and the reward of who moves last."""

    action_space = spaces.Discrete(9)
    observation_space = spaces.Discrete(1)
    state_attributes = ("moves",)
    ends: ClassVar[dict[str, float]]

    def _info(self) -> dict[str, Any]:
        place = len(self.moves)
        legal = [int(key[place]) for key in self.ends if key[:-1].startswith(self.moves)]
        return {"action_mask": np.isin(np.arange(9), legal), "to_play": place % 2}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.moves = ""
        return 0, self._info()

    def step(self, action: Any) -> Any:
        self.moves += str(action)
        return 0, self.ends.get(self.moves, 0.0), self.moves in self.ends, False, self._info()


class Late(Script):
    """The move 0 wins after 7 moves, and 1 after 3, unless the reply is 0, which wins late."""

    ends: ClassVar = {"0" * 7: 1.0, "1" + "0" * 13: 1.0} | {
        f"1{reply}0": 1.0 for reply in range(1, 9)
    }


class Dice(Script):
    """Six moves, each of the number that a die shows; only the mask tells it."""

    state_attributes = ("moves", "die")

    def _info(self) -> dict[str, Any]:
        self.die = int(self.np_random.integers(3))
        return {"action_mask": np.arange(9) == self.die, "to_play": len(self.moves) % 2}

    def step(self, action: Any) -> Any:
        if action != self.die:
            raise ValueError("this action is not legal")
        self.moves += "0"
        return 0, 0.0, len(self.moves) == 6, False, self._info()


class Thirds(gymnasium.Env[Any, Any]):
    """Three players in turn add 1 to 3; who reaches 7 gets 1, and the player before gets a half.

    Rewards are in infos.
    """

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0, 9, (2,), np.int64)
    state_attributes = (("x", np.int64, (2,)),)
    goal = 7

    def _info(self, rewards: Any) -> dict[str, Any]:
        mask = np.arange(1, 4) <= self.goal - self.x[0]
        return {"action_mask": mask.astype(np.int8), "to_play": int(self.x[1]), "rewards": rewards}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.zeros(2, np.int64)
        return self.x.copy(), self._info(np.zeros(3))

    def step(self, action: Any) -> Any:
        player = int(self.x[1])
        self.x = np.array([self.x[0] + int(action) + 1, (player + 1) % 3])
        ended = bool(self.x[0] >= self.goal)
        rewards = np.zeros(3)
        if ended:
            rewards[player], rewards[player - 1] = 1.0, 0.5
        return self.x.copy(), float(rewards[player]), ended, False, self._info(rewards)


class Corridor(gymnasium.Env[Any, Any]):
    """One player walks left (0), waits (1) or walks right (2); who walks into a wall has erred."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0, 5, (1,), np.int64)
    state_attributes = (("place", int),)

    @staticmethod
    def masks(places: Any) -> Any:
        """Return which actions are legal; in even places one cannot wait."""
        return np.stack([places > 0, places % 2 == 1, places < 5], axis=1)

    def _observe(self) -> Any:
        mask = self.masks(np.array([self.place]))[0].astype(np.int8)
        return np.array([self.place]), {"action_mask": mask}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        if not self.masks(np.array([self.place]))[0, int(action)]:
            raise ValueError("this action is not legal")
        self.place += int(action) - 1
        obs, info = self._observe()
        return obs, float(self.place == 5), self.place == 5, False, info


class SilentCorridor(Corridor):
    """The same without masks."""

    def _observe(self) -> Any:
        return super()._observe()[0], {}
