"""`Planner`, the interface of all search algorithms, and `play`, which plans before every step."""

from __future__ import annotations

import inspect
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from typing import Any, ClassVar, NamedTuple, Never, Self

import numpy as np

from plangym_like.batch.spaces import as_actions
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners import checkpoint as files
from plangym_like.planners.action_sets import all_actions, as_plan, index_of
from plangym_like.planners.games import Game, Mask, Reads, Starts
from plangym_like.planners.plan import CURVE, Plan, Spent, check_plan_env
from plangym_like.planners.search import Best, Progress, Search, make_rng
from plangym_like.results import ResetResult, Transition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, check_seconds
from plangym_like.support.lazy_imports import needs_extra

# The layout of the progress bar.
_LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
# What the plan of an episode tells of each search.
_OF_ROOTS = ("visits", "policy", "mask", "values", "value", "player", "solved", "length")
_UNSAVED = "unsaved"  # takes the place of an option that a file cannot hold


@files.stored
class Kept(NamedTuple):
    """What is known from the last search, after `Planner.advance`."""

    state: Row  # where the last search began
    action: Any  # that was played there, ``(*action_shape)``
    memory: Any  # the `Search.memory` of the last search
    best: Best  # the best plan of the last search
    replies: tuple[Any, ...] = ()  # the actions that were played after it


class Planner(ABC):
    """Searches for good actions from a state of an environment.

    A planner only steps batches, so the environment's current state does not change. With the same
    seed and a budget in transitions, the plan is the same for any number of workers.

    A search can be stopped and resumed: `save` writes it to a file, `load` reads it, and `resume`
    continues it.

    To write a planner, implement `_search`. If it reuses results after `advance`, or if its
    searches can be saved, implement `_begin`, too.

    Parameters
    ----------
    env : PlanEnv
    legal, to_play : callable, optional
        Functions that say which actions are legal, and who moves; see `Rules`.

    Raises
    ------
    InputError
        `env` is not a `PlanEnv`.

    Examples
    --------
    >>> import plangym_like
    >>> class OneStep(Planner):
    ...     def _search(self, state, search):
    ...         assert search.has(2)  # it raises if the budget is too small
    ...         step = search.step_batch([0, 1], state)
    ...         best = [step.rewards.argmax()]
    ...         return search.plan(state, best, step.rewards[best], ended=step.terminateds[best])
    >>> env = plangym_like.make("CartPole-v1")
    >>> OneStep(env).plan(env.reset(seed=0).state, budget=2)
    Plan(score=1, 1 actions, ended=False, transitions=2)
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]]
    # Whether the planner maximises for the player to move; others refuse games of several players.
    _is_for_games: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        planner = super().__new__(cls)
        planner._given = args, kwargs  # for `save`
        return planner

    def __init__(
        self,
        env: PlanEnv,
        *,
        legal: Reads | None = None,
        to_play: Reads | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:  # said here, because Python's own error would not name the planner
            raise TypeError(f"{self.name} has no option {min(unknown)!r}")
        check_plan_env(self.name, env)
        self.env, self._rules = env, (legal, to_play)
        self._game()  # raises if the rules cannot be used
        self._last: tuple[Row, Search] | None = None
        self._next_action: Any = None
        self._kept: Kept | None = None
        self._has_begun = False  # any search

    def plan(
        self,
        state: Row | ResetResult | Transition | Starts | None = None,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        seed: Any = None,
        progress: bool | Callable[[Progress], object] = False,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
    ) -> Plan:
        """Search for a plan.

        Parameters
        ----------
        state : row, ResetResult or Transition, optional
            Where the plan starts; by default, the env's current state. Give the whole result of
            ``env.reset()`` or ``env.step(action, state)`` if the environment says which actions are
            legal, because most rows do not hold that. It is known for the last of these results,
            and for rows of OpenSpiel, PettingZoo and Taxi, unless a wrapper may change the infos.
        budget : int, optional
            The largest number of transitions (see `Spent`).
        seconds : float, optional
            The time after which no new round of batches begins. With both limits, the search ends
            at the first one that it reaches.
        seed : int, sequence of int, SeedSequence or Generator, optional
            An argument for `numpy.random.default_rng`; by default, each search draws different
            numbers.
        progress : bool or callable
            ``True`` shows a progress bar if stderr is a terminal. A callable is called with a
            `Progress` after every batch; if it raises StopIteration, the search ends with the best
            plan so far.
        checkpoint : path, optional
            A file to which the search is saved while it runs.
        every : float
            The number of seconds between two saves.

        Returns
        -------
        Plan

        Raises
        ------
        InputError
            Neither `budget` nor `seconds` is given, the budget is too small for one batch, `state`
            is a result that ends an episode, or an argument is invalid.
        StateError
            `state` is not a state of this environment.
        RewardError
            The environment returned a reward that is infinite or NaN.
        """
        budget, seconds = checked_limits(budget, seconds, needed=True)
        check_seconds("every", every)
        starts = Starts.of(self.env, state)
        with progress_bar(self.name, progress) as report:
            search = self._started(starts, budget, seconds, seed, report)
            return self._run(starts.states[0], search, checkpoint, every)

    def _started(self, starts: Starts, *limits_seed_and_report: Any) -> Search:
        """Return a search that has begun; see `Search` for the other arguments."""
        search, self._has_begun = Search(self.env, *limits_seed_and_report), True
        search.begin(self._game(), starts)
        kept, self._kept = self._kept, None
        search.memory = self._begin(starts.states[0], search, kept)
        return search

    def _game(self) -> Game:
        return Game(self.env, self.name, self._is_for_games, *self._rules)

    def resume(
        self,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        progress: bool | Callable[[Progress], object] = False,
        checkpoint: str | os.PathLike[str] | None = None,
        every: float = 60.0,
    ) -> Plan:
        """Continue the last search, which was stopped or has spent its budget.

        If the search was stopped, and has a budget in transitions, the plan is the same as that of
        a search that was not stopped.

        Parameters
        ----------
        budget, seconds : optional
            New limits for the whole search, what it has spent before included; by default, its old
            limits.
        progress, checkpoint, every
            As in `plan`.

        Raises
        ------
        InputError
            There is no search to continue, or an argument is invalid.
        """
        if self._last is None:
            raise InputError("there is no search to resume: call plan first, or load a saved one")
        budget, seconds = checked_limits(budget, seconds)
        check_seconds("every", every)
        state, last = self._last
        self._check_memory(last)
        with progress_bar(self.name, progress) as report:
            saved, game = last.resumable(), self._game()
            search = Search.resumed(self.env, saved, budget, seconds, report, game)
            return self._run(state, search, checkpoint, every)

    def _run(
        self,
        state: Row,
        search: Search,
        checkpoint: str | os.PathLike[str] | None,
        every: float,
    ) -> Plan:
        if checkpoint is not None:
            if not os.path.isdir(os.path.dirname(os.path.abspath(checkpoint))):
                raise InputError(f"checkpoint: there is no folder for the file {checkpoint}")
            self._check_memory(search)
            search.checkpoint = _repeated(lambda: self._write(checkpoint, state, search), every)
        self._last = self._next_action = None  # after an error, there is nothing to resume
        plan = self._search(state, search)
        self._last, self._next_action = (state, search), plan.next_action
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the planner and its last search to a file, completely or not at all.

        A search that is under way is saved by ``plan(checkpoint=path)``.

        Raises
        ------
        InputError
            No search has ended yet, or this planner's searches cannot be saved.
        """
        if self._last is None:
            raise InputError("there is no search to save: call plan first, or plan(checkpoint=...)")
        self._check_memory(self._last[1])
        self._write(path, *self._last)

    def _write(self, path: str | os.PathLike[str], state: Row, search: Search) -> None:
        content = {
            "planner": type(self).__name__,
            "options": self._options(),
            "state": state,
            "search": search.resumable(),
            "next_action": self._next_action,
        }
        files.save(path, self.env.layout.format, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: PlanEnv, **options: Any) -> Self:
        """Return a planner from a file that `save` wrote; `resume` continues its search.

        No code from the file is executed.

        Parameters
        ----------
        path : path
        env : PlanEnv
            It must be made like that of the saved planner.
        **options
            Options that differ from the saved ones. Functions that are not part of this package
            must be given again, because files do not hold them.

        Raises
        ------
        InputError
            The file holds a planner of another class, or an option is missing.
        StateFormatError
            The file was not written by `save`, or it is damaged.
        StateMismatchError
            The search belongs to another environment, version or configuration.
        """
        check_plan_env(cls.__name__, env)
        content = files.load(path, env.layout.format)
        known = {one.__name__: one for one in _subclasses(cls)}
        if content["planner"] not in known:
            raise InputError(
                f"{path} holds a search of {content['planner']}, which is not a {cls.__name__}"
            )
        given = {**content["options"], **options}
        for name, value in given.items():
            if isinstance(value, list) and len(value) == 2 and str(value[0]) == _UNSAVED:
                raise InputError(
                    f"the search was made with {name}={value[1]}, which files do not hold: give "
                    f"{name}= to load, or --option {name}=module:callable on the command line"
                )
        planner: Self = known[content["planner"]](env, **given)
        planner._last = content["state"], Search.resumed(env, content["search"])
        planner._next_action, planner._has_begun = content["next_action"], True
        return planner

    def _options(self) -> dict[str, Any]:
        """Return the arguments of this object besides the environment, in a form for files."""
        args, kwargs = self._given
        signature = inspect.signature(type(self))
        bound = dict(list(signature.bind(*args, **kwargs).arguments.items())[1:])
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.update(bound.pop(parameter.name, {}))
        return {name: _saved(value) for name, value in bound.items()}

    def _check_memory(self, search: Search) -> None:
        if search.memory is None:
            raise InputError(
                f"searches of {self.name} cannot be saved or resumed, because it keeps nothing in "
                "search.memory"
            )

    @property
    def name(self) -> str:
        """The name of the planner's class, for messages."""
        return type(self).__name__

    def advance(self, action: Any = None) -> None:
        """Prepare the next search, after an action was played.

        The next search may then reuse results of the last one, if it starts from the state that the
        action led to; with chance nodes, from a result with the same observation, reward, flags,
        legal actions and player as an outcome that was drawn. Without this call, each search begins
        from scratch. Call it once for each action that was played: in a game, for the own move and
        for the other player's reply.

        Parameters
        ----------
        action : array ``(*action_shape)``, optional
            By default, `Plan.next_action` of the last plan. After `plan_batch`, one action for each
            of its B states, ``(B, *action_shape)``. It is needed after the first action.

        Raises
        ------
        InputError
            There was no plan before, the number of actions is wrong, or an action is missing, not
            in the action space, or known not to be legal.
        """
        if not self._has_begun:
            raise InputError("advance says what was played after a plan: call plan first")
        given, action = action, self._next_action if action is None else action
        if action is None:
            raise InputError("advance: give the action that was played; no plan recommends it")
        if self._last is not None:
            state, search = self._last
            if given is not None:
                self._check_played(action, state, search.turns.legal)
            self._kept = Kept(state, np.asarray(action), search.memory, search.best)
        elif self._kept is not None:  # nothing is kept of a search that was interrupted
            self._check_played(action, self._kept.state, self._legal_after(self._kept))
            replies = (*self._kept.replies, np.asarray(action))
            self._kept = self._kept._replace(replies=replies)
        self._last = self._next_action = None

    def _legal_after(self, kept: Kept) -> Mask | None:
        """Return which actions are legal after those that were played; None if it is not known."""
        return None

    def _check_played(self, action: Any, state: Row, legal: Mask | None) -> None:
        """Raise `InputError` unless `action` is in the action space, and `legal` ``(1, A)``.

        After `plan_batch`, `state` holds B rows, and `action` B actions.
        """
        layout = self.env.layout
        if state.ndim == 1:
            actions = [layout.check_action(action)]
        else:
            actions = as_actions(layout.action_space, action, 1, layout.out_of_bounds)
            if len(actions) != len(state):
                raise InputError(
                    f"advance needs one action for each of the {len(state)} states of plan_batch, "
                    f"got {len(actions)}"
                )
        if legal is None:
            return
        every = all_actions(self.env, self.name)
        for row, one in enumerate(actions):
            if not legal[row, index_of(every, one)]:
                raise InputError(f"advance: action {one} is not legal in state {row}")

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> Any:
        """Return the `Search.memory` to begin with.

        Results of the last search may be reused if `kept` is not ``None``.
        """
        return None

    @abstractmethod
    def _search(self, state: Row, search: Search) -> Plan:
        """Search while ``search.has(n)`` allows n more transitions; return ``search.plan(...)``.

        Step every batch with `search`, and draw every random number from ``search.rng``.
        """


def play(
    planner: Planner,
    steps: int,
    state: Row | ResetResult | Transition | None = None,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    seed: Any = None,
    progress: bool | Callable[[Progress], object] = False,
) -> Plan:
    """Play an episode in closed loop: each action is the `Plan.next_action` of a new plan.

    Parameters
    ----------
    planner : Planner
    steps : int
        The largest number of actions. The episode may end earlier.
    state : row, ResetResult or Transition, optional
        Where to start; by default, the env's current state, which does not change.
    budget, seconds : optional
        The limits of each search; see `Planner.plan`. With `seconds`, ``info["late"]`` of the
        result says by how many seconds each search missed it, ``(T,)``; 0 if it did not.
    seed : int, sequence of int, SeedSequence or Generator, optional
        The seeds of the searches are spawned from it. A SeedSequence or Generator spawns different
        seeds in each call.
    progress : bool or callable
        As in `Planner.plan`, for the whole episode: a callable is called after every batch and
        after every step, with the score of the episode so far. If it raises StopIteration, the
        current search ends, and the action of its best plan is the last one that is played.

    Returns
    -------
    Plan
        The actions played, and the cost of all searches. The curve is the score of the episode so
        far; unlike the curve of a search, it may fall. The score counts all rewards, whoever earned
        them. With planners that grow trees, ``info`` holds what a learner needs of each root:
        ``visits``, ``policy``, ``mask`` and ``values``, each ``(T, A)``, and ``value``, ``player``,
        ``solved`` and ``length`` (-1 where it is not solved), each ``(T,)``.

    Raises
    ------
    InputError
        As in `Planner.plan`; or no seeds can be spawned from `seed`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RandomShooting, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> play(RandomShooting(env, horizon=10), steps=50, budget=500, seed=0).score
    50.0
    """
    if not isinstance(planner, Planner):
        raise InputError(f"play needs a planner, such as UCT(env), got {planner!r}")
    steps, env, rng = as_count("steps", steps), planner.env, make_rng(seed)
    starts = Starts.of(env, state)
    start = starts.states[0]
    total, score, ended, stopped = Spent(), 0.0, False, False
    moves: list[tuple[Any, int, float]] = []
    roots: list[dict[str, Any]] = []
    curve: list[tuple[int, int, float, float]] = []
    with progress_bar(f"{planner.name}, {steps} steps", progress) as report:

        def watch(done: float, spent: Spent, note: str) -> None:
            """Report the progress of the episode."""
            nonlocal stopped
            try:
                if report is not None and not stopped:
                    report(Progress(done / steps, score, spent, note))
            except StopIteration:
                stopped = True

        def watch_search(search: Progress) -> None:
            """Report the progress of the episode, given that of the current search."""
            watch(len(moves) + search.done, total + search.spent, f"step {len(moves) + 1}")
            if stopped:
                raise StopIteration

        while len(moves) < steps and not ended and not stopped:
            if moves:
                planner.advance()
            seeded = _spawned(rng)
            watched = False if report is None else watch_search
            plan = planner.plan(
                starts, budget=budget, seconds=seconds, seed=seeded, progress=watched
            )
            action, dt = np.asarray(plan.next_action), int(plan.dt[0])
            result = env.step_batch(action[None], starts.states, dt=dt)
            starts = Starts(result.states, result.obs, result.infos, rewards=result.rewards)
            total, score = total + plan.spent, score + float(result.rewards[0])
            moves.append((action, dt, float(result.rewards[0])))
            roots.append(plan.info)
            curve.append((total.transitions, total.frames, total.seconds, score))
            ended = bool(result.terminateds[0] or result.truncateds[0])
            watch(len(moves), total, f"step {len(moves)}")
    actions, held, rewards = zip(*moves, strict=True)
    info = _stacked_roots(roots)
    if seconds is not None:
        info["late"] = np.maximum(np.diff([0.0, *(one[2] for one in curve)]) - seconds, 0.0)
    return Plan(
        start,
        as_plan(env.action_space, actions),
        np.array(held, np.int64),
        np.array(rewards, np.float64),
        ended,
        None,
        total,
        np.array(curve, CURVE),
        info,
    )


def _stacked_roots(roots: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the infos of T searches as arrays ``(T, ...)``; lengths that are not known are -1."""
    return {
        name: np.array([-1 if one[name] is None else one[name] for one in roots])
        for name in _OF_ROOTS
        if name in roots[0]
    }


def _spawned(rng: np.random.Generator) -> np.random.Generator:
    """Return a new generator with a seed spawned from `rng`."""
    try:
        return rng.spawn(1)[0]
    except TypeError as error:
        raise InputError(
            "play spawns a seed for each search, but the given seed cannot spawn any "
            f"({error}): give a whole number, or numpy.random.default_rng(number)"
        ) from error


@contextmanager
def progress_bar(
    name: str, progress: bool | Callable[[Progress], object]
) -> Iterator[Callable[[Progress], object] | None]:
    """Yield a function that shows a `Progress` after `name`, or None if nothing is to be shown.

    `progress` is as in `Planner.plan`.

    Raises
    ------
    MissingExtraError
        tqdm is needed, but is not installed.
    """
    if callable(progress) or not progress or not sys.stderr.isatty():
        yield progress if callable(progress) else None
        return
    with needs_extra("a progress bar needs tqdm", "viz"):
        from tqdm import tqdm
    with tqdm(total=1.0, desc=name, bar_format=_LAYOUT, mininterval=0.2) as bar:

        def show(progress: Progress) -> None:
            """Update the bar."""
            spent = progress.spent
            rate = spent.transitions / max(spent.seconds, 1e-9)
            note = f", {progress.note}" if progress.note else ""
            score = "no score yet" if isnan(progress.score) else f"score {progress.score:,.6g}"
            bar.set_postfix_str(f"{score}, {rate:,.0f} transitions/s{note}", refresh=False)
            bar.update(progress.done - bar.n)

        yield show


def _repeated(function: Callable[[], object], every: float) -> Callable[[], None]:
    """Return a function that calls another one, but at most once in so many seconds."""
    last = time.monotonic()

    def call() -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            function()
            last = time.monotonic()

    return call


def _saved(value: Any) -> Any:
    """Return `value` if a file can hold it; otherwise, a list that says what it was."""
    return value if files.can_hold(value) else [_UNSAVED, repr(value)]


def _subclasses(cls: type[Any]) -> list[type[Any]]:
    return [cls, *(one for child in cls.__subclasses__() for one in _subclasses(child))]


def checked_limits(
    budget: Any, seconds: Any, *, needed: bool = False
) -> tuple[int | None, float | None]:
    """Return the limits of a search, which are checked; None for no limit."""
    if needed and budget is None and seconds is None:
        raise InputError("plan needs a budget in transitions, or seconds: give budget= or seconds=")
    if budget is not None:
        budget = as_count("budget", budget)
    if seconds is not None:
        check_seconds("seconds", seconds)
    return budget, seconds
