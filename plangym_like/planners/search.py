"""`Search`: steps an environment during a search, and counts the steps against a budget."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, RewardError
from plangym_like.planners.action_sets import allowed, as_plan
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Game, Mask, Starts, Turns
from plangym_like.planners.nodes import Floats, Ints
from plangym_like.planners.plan import CURVE, Plan, Spent
from plangym_like.results import BatchTransition, Rollout
from plangym_like.states.rows import Row, States


class Progress(NamedTuple):
    """The progress of a search.

    Attributes
    ----------
    done : float
        The part of the budget or of the time that is spent, whichever is larger, from 0 to 1.
    score : float
        The best score so far; NaN before there is one.
    spent : Spent
    note : str
        A note from the planner, such as the number of cells.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RandomShooting
    >>> def stop_at_20(progress):
    ...     if progress.score >= 20:
    ...         raise StopIteration
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RandomShooting(env).plan(state, budget=50_000, seed=0, progress=stop_at_20)
    >>> plan.score >= 20, plan.spent.transitions < 50_000
    (True, True)
    """

    done: float
    score: float
    spent: Spent
    note: str


@stored
class Best(NamedTuple):
    """The best plan so far."""

    score: float = -np.inf  # while there is no plan
    ended: bool = False  # whether the plan ends the episode
    # The plan, in the planner's own form: a node of a tree, or arrays of actions and rewards.
    found: Any = None


class Played(NamedTuple):
    """Random play of T actions from N states."""

    actions: Ints  # numbers of the actions, ``(N, T)``
    rewards: Floats  # ``(N, T)``
    gains: Floats  # of each player, ``(N, T, P)``
    lengths: Ints  # how many actions were stepped, ``(N,)``
    ended: Mask  # ``(N,)``
    # For each depth from 1, the rows that were stepped, and their turns afterwards; empty if all
    # actions are legal and there is one player.
    turns: list[tuple[Ints, Turns]]

    def returns(self, discount: float) -> Floats:
        """Return the discounted return of each player, ``(N, P)``."""
        weights = discount ** np.arange(self.gains.shape[1])
        if self.gains.shape[2] == 1:
            return (self.gains[:, :, 0] @ weights)[:, None]
        returns: Floats = np.einsum("ntp,t->np", self.gains, weights)
        return returns


class Search:
    """Steps the environment of a planner, and counts the cost.

    Parameters
    ----------
    env : PlanEnv
    budget : int, optional
        The largest number of transitions.
    seconds : float, optional
        The time after which no more batches are stepped.
    seed : int, sequence of int, SeedSequence or Generator, optional
    progress : callable, optional
        It is called with a `Progress` after every batch. If it raises StopIteration, `has` returns
        False from then on.

    Attributes
    ----------
    env : PlanEnv
    rng : numpy.random.Generator
        The source of all random numbers of the search.
    memory : object
        All that the planner needs to continue the search, and what the next search may reuse. It
        must be complete whenever the planner calls `has`, because the search may be saved there.
    best : Best
        The best plan so far; planners replace it.
    turns : Turns, optional
        Which actions are legal in the first states, and who moves there.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> search = Search(env, budget=10, seconds=None, seed=0)
    >>> step = search.step_batch(search.rng.integers(2, size=8), state)
    >>> search.remaining, search.has(2), search.has(3), search.fit(64)
    (2, True, False, 2)
    """

    def __init__(
        self,
        env: PlanEnv,
        budget: int | None,
        seconds: float | None,
        seed: Any = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        self.env, self.rng = env, make_rng(seed)
        self.memory: Any = None
        self.best = Best()
        self.game = Game(env, "a search", is_for_games=True)
        self.starts: Starts
        self.turns = Turns(None, np.zeros(1, np.intp))
        # Called whenever the search may be saved.
        self.checkpoint: Callable[[], object] | None = None
        self._budget, self._seconds, self._progress = budget, seconds, progress
        self._begun = time.perf_counter()
        self._transitions = self._frames = self._rounds = 0
        self._seconds_in_env = 0.0
        self._curve: list[tuple[int, int, float, float]] = []
        self._note, self._stopped, self._plays = "", False, False
        self._mark()

    def begin(self, game: Game, starts: Starts) -> None:
        """Find out which actions are legal in the first states, and who moves there."""
        self.game, self.starts, self.turns = game, starts, game.begin(starts)

    def turns_after(self, step: BatchTransition) -> Turns:
        """Return the turns of the states that a batch has led to."""
        over = step.terminateds | step.truncateds
        return self.game.turns(step.obs, step.infos, step.states, over)

    def legal_starts(self) -> Mask:
        """Return which actions are legal in the first states; see `legal_after`."""
        return self._all_legal(self.turns.legal, len(self.turns.to_play))

    def legal_after(self, step: BatchTransition) -> Mask:
        """Return which actions are legal in the states that a batch has led to, ``(N, A)``.

        For spaces that are not finite, A is 0.
        """
        legal = None if self.game.says_nothing(step.infos) else self.turns_after(step).legal
        return self._all_legal(legal, len(step.rewards))

    def _all_legal(self, legal: Mask | None, count: int) -> Mask:
        return np.ones((count, self.game.num_actions or 0), bool) if legal is None else legal

    def has(self, transitions: int) -> bool:
        """Return whether the search may step this many more transitions.

        Call it before each round of batches, because the search may be saved here.

        Raises
        ------
        InputError
            The first batch does not fit into the budget, so the search would find nothing.
        """
        self._mark()
        if self.checkpoint is not None:
            self.checkpoint()
        if not self.affords(transitions):
            if not self._rounds:
                raise InputError(
                    f"a budget of {self._budget} transitions is too small: the first batch of this "
                    f"planner has {transitions}; give more, or make its batches smaller"
                )
            return False
        is_late = self._seconds is not None and self._elapsed() >= self._seconds
        if self._rounds and (self._stopped or is_late):
            return False
        self._rounds += 1
        return True

    def affords(self, transitions: int) -> bool:
        """Return whether the budget allows this many more transitions, within a round."""
        return self._budget is None or self._transitions + transitions <= self._budget

    def _mark(self) -> None:
        """Remember what `resumable` returns, besides the memory."""
        self._marked: dict[str, Any] = {
            "rng": self.rng.bit_generator.state,
            "best": self.best,
            "counts": (self._rounds, self._transitions, self._frames, self._seconds_in_env),
            "seconds": self._elapsed(),
            "points": len(self._curve),
        }

    def resumable(self) -> dict[str, Any]:
        """Return the search as it was when the planner last called `has`, as plain data."""
        rng = copy.deepcopy(self.rng)
        rng.bit_generator.state = self._marked["rng"]
        return {
            **self._marked,
            "budget": self._budget,
            "limit": self._seconds,
            "turns": self.turns,
            "players": self.game.players,
            "rng": rng,
            "curve": np.array(self._curve[: self._marked["points"]], CURVE),
            "memory": self.memory,
        }

    @classmethod
    def resumed(
        cls,
        env: PlanEnv,
        saved: dict[str, Any],
        budget: int | None = None,
        seconds: float | None = None,
        progress: Callable[[Progress], object] | None = None,
        game: Game | None = None,
    ) -> Self:
        """Return the search that `resumable` has described, with new limits if these are given."""
        if budget is None and seconds is None:
            budget, seconds = saved["budget"], saved["limit"]
        search = cls(env, budget, seconds, saved["rng"], progress)
        search.memory, search.best = saved["memory"], saved["best"]
        search.game, search.turns = game or search.game, saved["turns"]
        search.game.players = max(search.game.players, saved["players"])
        search._rounds, search._transitions, search._frames, in_env = saved["counts"]
        search._seconds_in_env = in_env
        search._begun -= saved["seconds"]
        search._curve = saved["curve"].tolist()
        search._mark()
        return search

    @property
    def budget(self) -> int | None:
        """The largest number of transitions; None if only the time is limited."""
        return self._budget

    @property
    def remaining(self) -> int | None:
        """The number of transitions left in the budget; None if only the time is limited."""
        return None if self._budget is None else self._budget - self._transitions

    def fit(self, count: int, cost: int = 1) -> int:
        """Return how many of `count` items the budget allows, if each costs `cost` transitions.

        The result is at least 1, so that `has` decides whether the search ends.
        """
        remaining = self.remaining
        return count if remaining is None else max(1, min(count, remaining // cost))

    def step_batch(
        self, actions: Any, states: States, dt: Any = 1, *, seeds: Any = None
    ) -> BatchTransition:
        """Call `PlanEnv.step_batch`, and count its rows.

        Raises
        ------
        RewardError
            A reward is infinite or NaN.
        """
        begun = time.perf_counter()
        step = self.env.step_batch(actions, states, dt, seeds=seeds)
        self._count(begun, len(step.rewards), step.infos["n_step"], step.rewards)
        self.game.refuse_players(step.infos)
        return step

    def play_out(
        self,
        all_actions: NDArray[Any],
        plans: Ints,
        states: States,
        turns: Turns,
        dt: int = 1,
        *,
        seeds: Any = None,
        needs_turns: bool = False,
    ) -> Played:
        """Play plans ``(N, T)``; actions that are not legal are replaced by random legal ones.

        Parameters
        ----------
        all_actions : array ``(A, *action_shape)``
        plans : array ``(N, T)``
            Numbers of actions.
        states : rows ``(N, state_nbytes)``
        turns : Turns
            Those of `states`.
        dt : int
        seeds : array ``(N,)``, optional
            The seeds of the first actions.
        needs_turns : bool
            Whether `Played.turns` are needed.
        """
        if turns.legal is None and self.game.players == 1:
            rollout = self.rollout_batch(all_actions[plans], states, dt, seeds=seeds)
            gains = rollout.rewards[:, :, None]
            return Played(plans, rollout.rewards, gains, lengths(rollout), ended(rollout), [])
        if self.env.layout.plays_out and self.game.reads_infos and dt == 1 and not needs_turns:
            return self._play_legally(all_actions[plans], states, seeds)
        self._plays = True  # its batches count as one
        try:
            played = self._play_stepwise(all_actions, plans.copy(), states, turns, dt, seeds)
        finally:
            self._plays = False
        self._tell()
        return played

    def _play_legally(self, actions: NDArray[Any], states: States, seeds: Any) -> Played:
        """Play in one call; the environment replaces actions that are not legal."""
        rollout = self.rollout_batch(actions, states, seeds=seeds, legal=True)
        gains, taken = rollout.infos["rewards"], rollout.infos["actions"]
        self.game.refuse_infinite(gains)
        return Played(taken, rollout.rewards, gains, lengths(rollout), ended(rollout), [])

    def _play_stepwise(
        self,
        all_actions: NDArray[Any],
        plans: Ints,
        states: States,
        turns: Turns,
        dt: int,
        seeds: Any,
    ) -> Played:
        game, (count, horizon) = self.game, plans.shape
        rewards, ends = np.zeros(plans.shape), np.zeros(count, bool)
        gains = np.zeros((count, horizon, game.players))
        on, steps = np.arange(count), np.zeros(count, np.intp)
        after: list[tuple[Ints, Turns]] = []
        for depth in range(horizon):
            chosen = plans[on, depth] = allowed(plans[on, depth], turns.legal, self.rng)
            first = None if depth or seeds is None else seeds[on]
            step = self.step_batch(all_actions[chosen], states, dt, seeds=first)
            movers, turns = turns.to_play, self.turns_after(step)
            if game.players > gains.shape[2]:
                gains = np.pad(gains, ((0, 0), (0, 0), (0, game.players - gains.shape[2])))
            rewards[on, depth], gains[on, depth] = step.rewards, game.gains(step, movers)
            steps[on] += 1
            after.append((on, turns))
            over = step.terminateds | step.truncateds
            ends[on[over]] = True
            if over.all():
                break
            (left,) = (~over).nonzero()
            on, states, turns = on[left], step.states[left], turns.take(left)
        return Played(plans, rewards, gains, steps, ends, after)

    def rollout_batch(
        self,
        actions: Any,
        states: States,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
        legal: bool = False,
    ) -> Rollout:
        """Call `PlanEnv.rollout_batch`, and count the actions up to the end of each episode.

        Raises
        ------
        RewardError
            A reward is infinite or NaN.
        """
        begun = time.perf_counter()
        rollout = self.env.rollout_batch(
            actions,
            states,
            dt,
            seeds=seeds,
            return_observations=return_observations,
            legal=legal,
        )
        steps = int(lengths(rollout).sum())
        self._count(begun, steps, rollout.infos["n_step"], rollout.rewards)
        return rollout

    def leads_to(
        self, before: Row, actions: Sequence[Any], dt: int, after: Row, reserve: int = 0
    ) -> bool:
        """Return whether actions lead from one state to another; each costs a transition.

        If less than `reserve` transitions would be left afterwards, return False without a step.
        """
        if not self.affords(len(actions) + reserve):
            return False
        states: States = before[None]
        for action in actions:
            states = self.step_batch(np.asarray(action)[None], states, dt).states
        return np.array_equal(states[0], after)

    def _count(
        self,
        begun: float,
        transitions: int,
        frames: NDArray[np.int64],
        rewards: NDArray[np.float64],
    ) -> None:
        self._seconds_in_env += time.perf_counter() - begun
        finite = np.isfinite(rewards)
        if not finite.all():
            raise RewardError(
                f"{self.env.name} returned the reward {rewards[~finite][0]}, but planners can only "
                "compare finite rewards: replace it, for example with the wrapper "
                "gymnasium.wrappers.TransformReward(env, numpy.nan_to_num)"
            )
        self._transitions += transitions
        self._frames += int(frames.sum())
        self._tell()

    def _tell(self) -> None:
        """Call `progress`, unless a play-out is under way."""
        if self._progress is not None and not self._plays:
            try:
                self._progress(self.progress())
            except StopIteration:
                self._stopped = True

    def better(self, scores: NDArray[np.float64]) -> int | None:
        """Return the row of the highest of `scores` ``(N,)`` if it beats `best`, else ``None``."""
        row = int(np.argmax(scores))
        return row if scores[row] > self.best.score else None

    def keep_rollout(
        self,
        actions: NDArray[Any],
        rewards: Floats,
        steps: NDArray[Any],
        ended: Mask,
        values: Any = None,
    ) -> None:
        """Replace `best` if a row of a rollout from the first state has a higher score.

        The actions and rewards are ``(N, T, ...)``, and count up to `steps` ``(N,)``. The scores
        are `values` ``(N,)``; by default, the sums of the rewards. `found` then holds the actions
        and rewards of the row.
        """
        row = self.better(rewards.sum(axis=1) if values is None else values)
        if row is not None:
            found = actions[row, : steps[row]].copy(), rewards[row, : steps[row]].copy()
            score = math.fsum(found[1]) if values is None else float(values[row])
            self.best = Best(score, bool(ended[row]), found)

    def keep_episode(
        self,
        nodes: NDArray[np.int64],
        scores: NDArray[np.float64],
        over: NDArray[np.bool_],
        complete: bool = False,
    ) -> int | None:
        """If one of N episodes beats `best`, keep its node there, and return its row.

        An episode that has ended always counts. An unfinished episode counts if its score is
        greater than 0, or if all episodes are `complete`. Without this condition, the shortest
        plan would be the best if rewards are negative.
        """
        row = self.better(np.where(over | (scores > 0) | complete, scores, -np.inf))
        if row is not None:
            self.best = Best(float(scores[row]), bool(over[row]), int(nodes[row]))
        return row

    def report(self, score: float, note: str = "") -> None:
        """Record the score of the best plan so far; scores that are not higher are ignored.

        Minus infinity means that no plan has a score yet.
        """
        self._note = note
        if score > (self._curve[-1][3] if self._curve else -np.inf):
            spent = self.spent()
            self._curve.append((spent.transitions, spent.frames, spent.seconds, float(score)))

    def spent(self) -> Spent:
        """Return the cost so far."""
        return Spent(self._transitions, self._frames, self._elapsed(), self._seconds_in_env)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._begun

    def progress(self) -> Progress:
        """Return the progress of the search."""
        spent = self.spent()
        parts = [0.0]
        if self._budget is not None:
            parts.append(spent.transitions / self._budget)
        if self._seconds is not None:
            parts.append(spent.seconds / self._seconds)
        score = self._curve[-1][3] if self._curve else np.nan
        return Progress(min(max(parts), 1.0), score, spent, self._note)

    def plan(
        self,
        state: Row,
        actions: Any,
        rewards: Any,
        dt: Any = 1,
        *,
        ended: bool,
        seeds: Any = None,
        **info: Any,
    ) -> Plan:
        """Return the result of the search.

        Parameters
        ----------
        state : row
            Where the plan starts.
        actions : sequence ``(T, *action_shape)``
        rewards : sequence ``(T,)``
        dt : int or sequence ``(T,)``
        ended : bool
        seeds : sequence ``(T,)``, optional
        **info
            `Plan.info`.
        """
        chosen = as_plan(self.env.action_space, actions)
        rewards, spent = np.array(rewards, np.float64), self.spent()
        return Plan(
            np.array(state),
            chosen,
            np.broadcast_to(np.asarray(dt, np.int64), len(chosen)).copy(),
            rewards,
            bool(ended),
            None if seeds is None else np.array(seeds, np.int64),
            spent,
            self._finished_curve(math.fsum(rewards), spent),
            info,
        )

    def _finished_curve(self, score: float, spent: Spent) -> NDArray[np.void]:
        """Return the curve up to a plan with this score, which no earlier point exceeds."""
        last = (spent.transitions, spent.frames, spent.seconds, score)
        curve = np.array([*self._curve, last][: len(self._curve) + bool(self._curve)], CURVE)
        np.minimum(curve["score"], score, out=curve["score"])
        return curve


def make_rng(seed: Any) -> np.random.Generator:
    """Return ``numpy.random.default_rng(seed)``.

    Raises
    ------
    InputError
        `seed` is invalid.
    """
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InputError(
            "seed must be a whole number of at least 0, a sequence of them, a SeedSequence or a "
            f"Generator, got {seed!r}"
        ) from error


def lengths(rollout: Rollout) -> NDArray[np.int64]:
    """Return how many actions of each row were stepped, ``(N,)``.

    These include the action that ended the episode; later actions are not stepped.
    """
    over = rollout.terminateds | rollout.truncateds
    ends: NDArray[np.int64] = np.where(over.any(axis=1), over.argmax(axis=1) + 1, over.shape[1])
    return ends


def ended(rollout: Rollout) -> Mask:
    """Return which rows of a rollout have ended their episode, ``(N,)``."""
    over: Mask = rollout.terminateds[:, -1] | rollout.truncateds[:, -1]
    return over
