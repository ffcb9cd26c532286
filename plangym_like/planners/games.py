"""Legal actions, and games of several players: what a search reads from the results of steps.

An environment says which actions are legal in the state that a step or a reset has led to, by
``info["action_mask"]`` or ``obs["action_mask"]``, and who moves next, by ``info["to_play"]``, or by
``obs["to_play"]`` beside such a mask. The rewards of all players are ``info["rewards"]``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import EnvApiError, InputError, RewardError
from plangym_like.planners.action_sets import count_actions
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.nodes import Floats, Ints, Rows
from plangym_like.planners.observations import joined, stacked
from plangym_like.results import BatchInfo, BatchTransition, ResetResult, Transition
from plangym_like.states.rows import States

# What is wrong with a result from which no search can begin.
_ENDS = (
    "ends an episode (it is terminated or truncated), so no plan begins there: give the result of "
    "reset, or of a step that does not end the episode"
)
Mask = NDArray[np.bool_]
# A function of N observations, infos and states. For the first state of a search, whose observation
# may not be known, the observations may be None and the infos empty.
Reads = Callable[[Any, BatchInfo, States], Any]


class Rules(TypedDict, total=False):
    """Options of every planner.

    Attributes
    ----------
    legal : callable
        ``legal(observations, infos, states)`` returns which actions are legal in N states,
        ``(N, A)``. By default, the environment's masks say it.
    to_play : callable
        ``to_play(observations, infos, states)`` returns the numbers of the players who move next,
        ``(N,)``, from 0. By default, the environment says it.
    """

    legal: Reads | None
    to_play: Reads | None


@stored
class Turns(NamedTuple):
    """Which actions are legal in N states, and who moves."""

    legal: Mask | None  # ``(N, A)``; None if all actions are legal
    to_play: Ints  # ``(N,)``

    def take(self, rows: Any) -> Turns:
        """Return the turns of some rows."""
        return Turns(None if self.legal is None else self.legal[rows], self.to_play[rows])

    def closed(self) -> Any:
        """Return which actions are not legal, ``(N, A)``, or False if all are legal."""
        return False if self.legal is None else ~self.legal


class Starts(NamedTuple):
    """The first states of B searches, with what is known of them.

    `obs` and `infos` are those that came with the states; None if they are not known. If the rows
    themselves tell masks and players, `infos` holds these. `is_given` says whether the caller gave
    `obs` and `infos`; otherwise they were looked up. `rewards` ``(B,)`` are those of the steps that
    have led to the states, if there were any and they are known.
    """

    states: Rows
    obs: Any = None
    infos: BatchInfo | None = None
    is_given: bool = False
    rewards: Floats | None = None

    @classmethod
    def of(cls, env: PlanEnv, given: Any) -> Starts:
        """Return one start: a state row, a result that holds one, or None (the current state).

        If the row is the state of the last result of ``env.reset`` or ``env.step``, the observation
        and the info of that result are known.

        Raises
        ------
        InputError
            The result ends an episode.
        """
        if isinstance(given, Starts):
            return given
        if isinstance(given, Transition) and (given.terminated or given.truncated):
            raise InputError(f"the given result {_ENDS}")
        is_result = isinstance(given, ResetResult | Transition)
        row = given.state if is_result else given
        row = np.array(env.get_state() if row is None else env.layout.format.check_row(row))[None]
        shown = given if is_result else env.last_result
        if shown is None or not (is_result or np.array_equal(shown.state, row[0])):
            return cls(row, infos=_told_by_rows(env, row))
        rewards = np.array([shown.reward]) if isinstance(shown, Transition) else None
        return cls(row, stacked(shown.obs), BatchInfo(1, {}, [shown.info]), is_result, rewards)

    @classmethod
    def of_many(cls, env: PlanEnv, given: Any) -> Starts:
        """Return B starts, from rows ``(B, state_nbytes)``, a `BatchTransition`, or a list.

        Raises
        ------
        InputError
            A result ends an episode; or these are not several states.
        """
        if isinstance(given, BatchTransition):
            _refuse_ends(given.terminateds | given.truncateds)
            return cls(np.array(given.states), given.obs, given.infos, True, given.rewards)
        is_row = isinstance(given, np.ndarray) and given.ndim == 1 and len(given)
        is_one = is_row or isinstance(given, ResetResult | Transition)
        if is_one or not isinstance(given, Sequence | np.ndarray):
            what = "one row" if is_row else type(given).__name__
            raise InputError(
                "plan_batch needs several states: rows (B, state_nbytes), a BatchTransition, or a "
                f"list of rows or of results, got {what}"
            )
        if not len(given):
            raise InputError("plan_batch needs at least one state")
        steps = [one if isinstance(one, Transition) else None for one in given]
        _refuse_ends([one is not None and (one.terminated or one.truncated) for one in steps])
        each = [cls.of(env, one) for one in given]
        states = np.concatenate([one.states for one in each])
        if any(one.infos is None for one in each):
            return cls(states)
        rows = [dict(one.infos[0]) for one in each if one.infos is not None]
        infos, observations = BatchInfo(len(each), {}, rows), [one.obs for one in each]
        if any(one is None for one in observations):
            return cls(states, infos=infos)
        are_given = all(one.is_given for one in each)
        paid = [one.rewards for one in each if one.rewards is not None]
        rewards = np.concatenate(paid) if len(paid) == len(each) else None
        return cls(states, joined(observations), infos, are_given, rewards)


class Game:
    """Reads masks, players and rewards from the results of an environment.

    Parameters
    ----------
    env : PlanEnv
    planner : str
        The name of the planner, for messages.
    is_for_games : bool
        Whether the planner plans for several players.
    legal, to_play : callable, optional
        See `Rules`.

    Attributes
    ----------
    players : int
        P, the largest number of players that was seen so far.
    """

    def __init__(
        self,
        env: PlanEnv,
        planner: str,
        is_for_games: bool,
        legal: Reads | None = None,
        to_play: Reads | None = None,
    ) -> None:
        for name, function in (("legal", legal), ("to_play", to_play)):
            if function is not None and not callable(function):
                raise InputError(
                    f"{name} must be a function of (observations, infos, states), got {function!r}"
                )
        self._env, self._planner, self._is_for_games = env, planner, is_for_games
        self._legal, self._to_play = legal, to_play
        self.num_actions = count_actions(env.action_space)
        if legal is not None and self.num_actions is None:
            raise InputError(f"legal is for finite actions, got {env.action_space}")
        observations = env.observation_space
        in_obs = observations.spaces.keys() if isinstance(observations, spaces.Dict) else ()
        # A mask beside actions that are not finite, such as a Box, has no meaning here.
        finite = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
        self._reads_masks = isinstance(env.action_space, finite)
        self._in_obs = self._reads_masks and "action_mask" in in_obs
        self._turn_in_obs = self._in_obs and "to_play" in in_obs
        self._starts_unknown = False
        self.is_masked, self.players = False, 1
        if to_play is not None or self._turn_in_obs:
            self._check_players(2)
        if not is_for_games and env.last_result is not None:  # before a planner asks for more
            self._count_players(BatchInfo(1, {}, [env.last_result.info]))

    def begin(self, starts: Starts) -> Turns:
        """Return the turns of the first states of a search.

        Raises
        ------
        InputError
            The players or the legal actions of a state are not known.
        """
        count, self._starts_unknown = len(starts.states), starts.infos is None
        infos = BatchInfo(count, {}) if starts.infos is None else starts.infos
        last = self._env.last_result
        is_told = self._reads_masks and last is not None and "action_mask" in last.info
        self.is_masked = self._in_obs or is_told
        if last is not None and starts.infos is None:
            self._count_players(BatchInfo(1, {}, [last.info]))  # raises if there are several
        self._refuse_unknown_mask(self.is_masked)
        try:
            turns = self.turns(starts.obs, infos, starts.states, np.zeros(count, bool))
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            if not self.reads_infos and starts.obs is None and not isinstance(error, EnvApiError):
                error.add_note(
                    "legal= and to_play= are called as f(observations, infos, states); for this "
                    "first state, which is a row, observations is None, and infos may be empty"
                )
            raise
        if turns.legal is None and self.is_masked:  # only other states have masks
            turns = turns._replace(legal=np.ones((count, self.num_actions or 0), bool))
        return turns

    def turns(self, obs: Any, infos: BatchInfo, states: States, over: Mask) -> Turns:
        """Return the turns of N states; `over` are those where the episode has ended.

        Raises
        ------
        EnvApiError
            A mask has the wrong shape, or a state has no legal action although it has not ended.
        InputError
            There are several players, and the planner is for one.
        """
        if self.says_nothing(infos):
            return Turns(None, np.zeros(len(states), np.intp))
        self._count_players(infos)
        legal = self._find_legal(obs, infos, states, over)
        return Turns(legal, self._find_player(obs, infos, states, over))

    @property
    def reads_infos(self) -> bool:
        """Whether masks and players come from the environment's infos, and nothing else."""
        return self._legal is None and self._to_play is None and not self._in_obs

    def gains(self, step: BatchTransition, movers: Ints) -> Floats:
        """Return the rewards of all players ``(N, P)``; the players `movers` have moved."""
        if self.players == 1:
            return step.rewards[:, None]
        count = len(step.rewards)
        if step.infos.mask("rewards").all() and count:
            found: Floats = _stacked(step.infos["rewards"]).reshape(count, -1).astype(float)
            if not 0 < (width := found.shape[1]) <= self.players:
                shown = step.infos["rewards"][0]
                raise EnvApiError(
                    f'info["rewards"] must hold one reward for each player, got {shown!r}'
                )
            self.refuse_infinite(found)
            return found if width == self.players else _widened(found, self.players)
        if self.players > 2:
            raise EnvApiError('games of more than two players must report info["rewards"]')
        gains: Floats = np.where(np.arange(2) == movers[:, None], 1.0, -1.0) * step.rewards[:, None]
        return gains

    def refuse_players(self, infos: BatchInfo) -> None:
        """Raise `InputError` if there are several players, and the planner is for one."""
        if not self._is_for_games and not self.says_nothing(infos):
            self._count_players(infos)

    def refuse_infinite(self, gains: NDArray[Any]) -> None:
        """Raise `RewardError` if a reward of a player is infinite or NaN."""
        finite = np.isfinite(gains)
        if not finite.all():
            raise RewardError(
                f'{self._env.name} returned the reward {gains[~finite][0]} in info["rewards"], but '
                "planners can only compare finite rewards"
            )

    def says_nothing(self, infos: BatchInfo) -> bool:
        """Return whether all actions are legal, and there is one player."""
        if self._legal is not None or self._to_play is not None or self._in_obs:
            return False
        return infos.keys().isdisjoint(("action_mask", "to_play", "rewards"))

    def _count_players(self, infos: BatchInfo) -> None:
        is_told = self._to_play is not None or self._turn_in_obs or infos.mask("to_play").any()
        rewarded = infos.mask("rewards")
        width = 2 if is_told else 1
        if rewarded.any():
            shown = infos[int(np.argmax(rewarded))]["rewards"]
            if is_told:
                width = len(_checked_rewards(shown))
            elif np.ndim(shown) == 1 and len(shown) > 1:
                raise EnvApiError(
                    f'info["rewards"] holds the rewards of {len(shown)} players, but '
                    'info["to_play"], the player who moves next, is missing; the parts of one '
                    "player's reward need another name"
                )
        if width > 1 and width > self.players:
            self._check_players(width)

    def _refuse_unknown_mask(self, is_masked: bool) -> None:
        """Raise `InputError` if there are masks, and that of the first state is not known."""
        if is_masked and self._starts_unknown and self._legal is None:
            raise InputError(self._unknown())

    def _check_players(self, players: int) -> None:
        if not self._is_for_games:
            raise InputError(
                f"{self._planner} plans for one player, and {self._env.name} is a game of "
                f"{players}: use UCT, PUCT or OpenLoopMCTS; UCT and PUCT prove wins and losses, too"
            )
        self.players = players
        if self._starts_unknown and self._to_play is None:
            raise InputError(self._unknown())

    def _unknown(self) -> str:
        return (
            "it is not known who moves in the first state, or which actions are legal, because a "
            "state row holds no info: give the result of reset or of step(action, state) in place "
            "of the row, or functions of (observations, infos, states): to_play= and legal="
        )

    def _find_player(self, obs: Any, infos: BatchInfo, states: States, over: Mask) -> Ints:
        count = len(states)
        if self._to_play is not None:
            found = np.asarray(self._to_play(obs, infos, states))
        elif self._turn_in_obs and obs is not None:
            found = np.asarray(obs["to_play"])
            found = found.reshape(count) if found.size == count else found
        else:
            has = infos.mask("to_play")
            if not has.any():
                return np.zeros(count, np.intp)
            found = infos["to_play"]
            if found.dtype == object:
                found = _stacked([0 if one is None else one for one in found])
        if found.shape != (count,) or found.dtype.kind not in "iub":
            raise EnvApiError(f"to_play must be {count} whole numbers, got {found!r}")
        found = np.where(over, 0, found)  # nobody moves where the episode has ended
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < self.players:
            raise EnvApiError(
                f"to_play must be a player from 0 to {self.players - 1}, got {found.min()} to "
                f'{found.max()}; info["rewards"] says how many players there are'
            )
        movers: Ints = found.astype(np.intp)
        return movers

    def _find_legal(self, obs: Any, infos: BatchInfo, states: States, over: Mask) -> Mask | None:
        found: Any
        if self._legal is not None:
            found = np.asarray(self._legal(obs, infos, states))
        elif self._in_obs and obs is not None:
            found = np.asarray(obs["action_mask"])
        elif self._reads_masks and (has := infos.mask("action_mask")).any():
            self._refuse_unknown_mask(is_masked=True)
            found = infos["action_mask"]
            if not has.all():
                every = np.ones(self.num_actions or 0)
                found = [every if one is None else one for one in found]
            found = _stacked(found)
        else:
            return None
        if self.num_actions is None:
            raise EnvApiError(
                f"masks of legal actions are for at most 4,096 actions, but {self._env.name} has "
                f"{self._env.action_space}"
            )
        if found.shape != (len(states), self.num_actions):
            raise EnvApiError(
                f"masks of legal actions must have the shape ({len(states)}, {self.num_actions}), "
                f"got {found.shape}; legal= may translate other masks"
            )
        if found.dtype != bool and not ((found == 0) | (found == 1)).all():
            raise EnvApiError(
                "masks of legal actions must hold 1 for a legal action and 0 for another one, got "
                f"{found[(found != 0) & (found != 1)][0]}"
            )
        legal: Mask = found.astype(bool)
        self.is_masked = True
        (stuck,) = (~over & ~legal.any(axis=1)).nonzero()
        if len(stuck):
            raise EnvApiError(
                f"{self._env.name} has a state without legal actions (row {stuck[0]} of "
                f"{len(states)}): no search can begin there, and if the episode goes on, the "
                "environment must end it there, or allow a pass"
            )
        return legal


def count_players(
    env: PlanEnv, start: ResetResult, legal: Reads | None = None, to_play: Reads | None = None
) -> int:
    """Return how many players there are, as far as the first result of an episode says."""
    game = Game(env, "a search", True, legal, to_play)
    game.begin(Starts.of(env, start))
    return game.players


def _refuse_ends(ended: Any) -> None:
    """Raise `InputError` if one of N results ends an episode, which `ended` ``(N,)`` says."""
    (rows,) = np.asarray(ended).nonzero()
    if len(rows):
        raise InputError(f"result {rows[0]} of {len(ended)} {_ENDS}")


def _stacked(values: Any) -> NDArray[Any]:
    """Return N values as one array; an empty one if their shapes differ."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    with contextlib.suppress(ValueError):  # the parts of one value may differ, too
        return np.stack([np.asarray(one) for one in values])
    return np.zeros((0,))


def _checked_rewards(shown: Any) -> Any:
    """Return ``info["rewards"]``; raise `EnvApiError` unless it has a number for each player."""
    if np.ndim(shown) != 1 or not len(shown):
        raise EnvApiError(
            'info["rewards"] must be an array (P,) with the rewards of the players 0 to P - 1, got '
            f"{shown!r}"
        )
    return shown


def _widened(gains: Floats, players: int) -> Floats:
    """Return gains ``(N, P)`` with zeros for more players."""
    found = np.zeros((len(gains), players))
    found[:, : gains.shape[1]] = gains
    return found


def _told_by_rows(env: PlanEnv, states: Rows) -> BatchInfo | None:
    """Return masks and players of states, as infos, if the rows hold them; otherwise, None.

    In a game of several players, rewards of 0 say how many there are.
    """
    columns, count = env.layout.columns, len(states)
    names = {"action_mask", "to_play"} & columns.keys()
    if "action_mask" not in names or ("to_play" in names and "rewards" not in columns):
        return None
    fields = env.view_state(states)
    if not names <= fields.keys():
        return None
    told = {name: fields[name] for name in names}
    if "rewards" in columns:
        told["rewards"] = np.zeros((count, *columns["rewards"][0]))
    return BatchInfo(count, told)
