"""`Plan`: the actions that a planner found, their score, and the cost of the search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.gym_view import GymView
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.states.state_files import replacing

# One point of `Plan.curve`.
CURVE = np.dtype(
    [("transitions", np.int64), ("frames", np.int64), ("seconds", float), ("score", float)]
)


@dataclass(frozen=True)
class Spent:
    """The cost of a search.

    Attributes
    ----------
    transitions : int
        Rows that were stepped; a row of a rollout counts once for each action that was stepped.
    frames : int
        Frames that were simulated, the sum of ``info["n_step"]``. An action that is held for
        several frames is one transition.
    seconds : float
        The time that the search took.
    seconds_in_env : float
        The part of `seconds` that `PlanEnv.step_batch` and `PlanEnv.rollout_batch` took.

    Examples
    --------
    >>> spent = Spent(transitions=100, frames=400) + Spent(transitions=20, frames=80)
    >>> spent.transitions, spent.frames
    (120, 480)
    """

    transitions: int = 0
    frames: int = 0
    seconds: float = 0.0
    seconds_in_env: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.transitions + other.transitions,
            self.frames + other.frames,
            self.seconds + other.seconds,
            self.seconds_in_env + other.seconds_in_env,
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Actions that lead from a state to a score.

    Attributes
    ----------
    state : array ``(state_nbytes,) uint8``
        The state that the plan starts from.
    actions : array ``(T, *action_shape)``
    dt : array ``(T,) int64``
        How long each action is held; see `PlanEnv.step`.
    rewards : array ``(T,) float64``
        The reward of each action.
    ended : bool
        Whether the last action ends the episode.
    seeds : array ``(T,) int64``, optional
        The seeds of the actions, for plans through an environment with random steps; see
        `PlanEnv.step_batch`. An action whose seed is -1 is stepped without a seed.
    spent : Spent
    curve : structured array
        The best score so far, with the fields ``transitions``, ``frames``, ``seconds`` and
        ``score``. The score never falls, and the last value is the plan's score, except in plans
        of `play`, whose score may fall. It is empty if no score was found before the end.
    info : dict
        Other results, described by each planner. ``info["action"]`` is `next_action`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RandomShooting
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RandomShooting(env, horizon=20).plan(state, budget=20_000, seed=0)
    >>> plan.score, plan.ended, plan.replay(env)
    (1.0, True, 1.0)
    """

    state: Row
    actions: NDArray[Any]
    dt: NDArray[np.int64]
    rewards: NDArray[np.float64]
    ended: bool = False
    seeds: NDArray[np.int64] | None = None
    spent: Spent = Spent()
    curve: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, CURVE))
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The sum of the rewards, rounded once, so that it does not depend on their order."""
        return math.fsum(self.rewards)

    @property
    def next_action(self) -> Any:
        """The action to take before planning again; `play` takes it.

        It is the first of `actions`, unless the planner recommends another action.
        """
        return self.info.get("action", self.actions[0])

    def __len__(self) -> int:
        return len(self.actions)

    def __repr__(self) -> str:
        return (
            f"Plan(score={self.score:.6g}, {len(self)} actions, ended={self.ended}, "
            f"transitions={self.spent.transitions})"
        )

    def replay(self, env: PlanEnv) -> float:
        """Step `env` through the plan, and return the score.

        The result equals `score` if `env` was made with the same arguments as the environment of
        the planner. The env's current state does not change.
        """
        return math.fsum(float(step.rewards[0]) for step in self.steps(env))

    def steps(self, env: PlanEnv) -> Iterator[BatchTransition]:
        """Step `env` through the plan, and yield each step as a batch of one row.

        The env's current state does not change.
        """
        check_plan_env("a plan", env)
        states = self.state[None]
        for index, action in enumerate(self.actions):
            seed = -1 if self.seeds is None else int(self.seeds[index])
            seeds = None if seed < 0 else seed
            step = env.step_batch(action[None], states, dt=int(self.dt[index]), seeds=seeds)
            states = step.states
            yield step

    def save(self, path: str | Path) -> None:
        """Write the plan, without `info`, to a JSON file; if this fails, the file is unchanged."""
        data = {
            "state": self.state.tobytes().hex(),
            "actions": self.actions.tolist(),
            "actions_dtype": self.actions.dtype.str,
            "dt": self.dt.tolist(),
            "rewards": self.rewards.tolist(),
            "ended": self.ended,
            "seeds": None if self.seeds is None else self.seeds.tolist(),
            "score": self.score,
            "spent": vars(self.spent),
            "curve": self.curve.tolist(),
        }
        with replacing(path) as file:
            file.write(json.dumps(data).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan from a file that `save` wrote.

        Raises
        ------
        InputError
            The file holds no plan.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            seeds = data["seeds"]
            plan = cls(
                np.frombuffer(bytes.fromhex(data["state"]), np.uint8).copy(),
                np.array(data["actions"], data["actions_dtype"]),
                np.array(data["dt"], np.int64),
                np.array(data["rewards"], np.float64),
                data["ended"],
                None if seeds is None else np.array(seeds, np.int64),
                Spent(**data["spent"]),
                np.array([tuple(point) for point in data["curve"]], CURVE),
            )
            columns = (plan.dt, plan.rewards, plan.dt if plan.seeds is None else plan.seeds)
            if any(column.shape != plan.actions.shape[:1] for column in columns):
                raise ValueError("its actions, dt, rewards and seeds differ in length")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} holds no plan that Plan.save wrote: {error!r}") from error
        return plan


def check_plan_env(who: str, env: Any) -> None:
    """Raise `InputError` unless `env` is a `PlanEnv`, which `who` needs."""
    if not isinstance(env, PlanEnv):
        hint = "; give the environment that as_gym was called on" * isinstance(env, GymView)
        raise InputError(
            f"{who} needs an environment of plangym_like.make, whose states can be stepped in "
            f"batches, got {env!r}{hint}"
        )
