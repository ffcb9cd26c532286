"""Planners that draw normally distributed plans: CEM, iCEM, MPPI and predictive sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import bounds
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.continuous_plans import (
    Objective,
    Reward,
    Spline,
    TerminalValue,
    at_risk,
    filtered,
    fitted,
    power_spectrum,
    shifted,
)
from plangym_like.planners.nodes import Floats
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search, ended, lengths
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# With a larger exponent, noise is almost constant; with a much larger one, powers overflow.
_LARGEST_BETA = 10.0
# CEM and iCEM end when no standard deviation exceeds this fraction of its initial value.
_CONVERGED = 1e-3
# Batches of these planners become smaller if the budget would otherwise allow for fewer iterations.
_CEM_ITERATIONS, _ICEM_ITERATIONS = 5, 3


class PlanOptions(TypedDict, total=False):
    """Options of every planner that draws normally distributed plans.

    Attributes
    ----------
    dt : int
        How long each action is held; by default, 1.
    knots : int, optional
        Plans are splines with so many knots, D, and noise is added to the knots. By default, every
        action is a knot.
    spline : {"zero", "linear", "cubic"}
        The kind of spline, by default ``"linear"``; see `Spline`. Without `knots`, it has no
        effect.
    discount, reward, terminal_value : optional
        What is maximised; see `Objective`. By default, it is the sum of the rewards. `Plan.score`
        and `Plan.rewards` are always those of the environment.
    variants : sequence of dict, optional
        Other versions of the state to plan from, each the arguments of `PlanEnv.make_state`, such
        as ``[{"model": 1}, {"model": 2}]``. Every plan is rolled out from all versions, K with the
        state itself, which costs K times as many transitions. The plan's rewards are those from the
        state itself.
    risk : float
        From 0 to 1, by default 1: the value of a plan is its average over this fraction of the
        versions, those where it is worst, but at least over one. 1 is the mean of all, 0 the worst
        case, and between them it is the conditional value at risk.
    """

    dt: int
    knots: int | None
    spline: str
    discount: float
    reward: Reward | None
    terminal_value: TerminalValue | None
    variants: Sequence[Mapping[str, Any]]
    risk: float


@stored
@dataclass
class _Memory:
    """The state of a search."""

    mean: Floats  # ``(D, *action_shape)``, of the plans, or of their knots
    std: Floats
    budget: int | None  # of the whole search
    elites: Floats  # iCEM's best plans, ``(K, D, *action_shape)``
    returns: Floats  # theirs, ``(K,)``
    old: Floats  # iCEM's elites of the last search, shifted by one action
    count: int = 0  # of the plans that were rolled out
    steps: int = 0  # of the actions of these plans
    iteration: int = 0


class GaussianPlanner(Planner):
    """A planner that draws plans from a normal distribution around a mean plan.

    Parameters
    ----------
    env : PlanEnv
        Its action space is a bounded box of floats.
    horizon : int
        The number of actions in a plan, T.
    batch : int
        The number of plans in a batch, N.
    std : float
        The standard deviation of the noise, in units of half the range of each action.
    beta : float
        The exponent of the noise's spectrum, from 0 to 10. 0 is white noise; with larger values,
        noise changes more slowly. See `power_spectrum`.
    **options
        See `PlanOptions`.

    Attributes
    ----------
    std : array ``(*action_shape) float64``
        The standard deviation of the noise, in units of the actions.

    Raises
    ------
    InputError
        An option is out of range, or the action space is not a bounded box of floats.
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int,
        batch: int,
        std: float,
        beta: float = 0.0,
        *,
        dt: int = 1,
        knots: int | None = None,
        spline: str = "linear",
        discount: float = 1.0,
        reward: Reward | None = None,
        terminal_value: TerminalValue | None = None,
        variants: Sequence[Mapping[str, Any]] = (),
        risk: float = 1.0,
        **unknown: Never,
    ) -> None:
        super().__init__(env, **unknown)
        is_sequence = isinstance(variants, Sequence)
        if not is_sequence or not all(isinstance(variant, Mapping) for variant in variants):
            raise InputError(f"variants must be a sequence of dicts, got {variants!r}")
        self.variants, self.risk = list(variants), as_number("risk", risk, 0.0, 1.0)
        self.objective = Objective(discount, reward, terminal_value)
        self.low, self.high = bounds(env, self.name)
        self.horizon, self.batch = as_count("horizon", horizon), as_count("batch", batch)
        self.dt, self.beta = as_count("dt", dt), as_number("beta", beta, 0.0, _LARGEST_BETA)
        ranges = self.high - self.low
        # Where bounds are equal, plans are clipped to them, and any deviation above 0 will do.
        self.std: Floats = as_number("std", std, 1e-6) * np.where(ranges > 0, ranges, 1.0) / 2
        self.knots = None if knots is None else as_count("knots", knots)
        self._spline = None if knots is None else Spline(spline, knots, self.horizon)
        self._power = power_spectrum(self.beta, self.num_knots)
        # The most transitions that a plan costs.
        self._cost = self.horizon * (1 + len(self.variants))

    @property
    def num_knots(self) -> int:
        """The number of knots of a plan, D; without a spline, that of its actions."""
        return self.knots or self.horizon

    def shifted(self, plans: Floats) -> Floats:
        """Return plans without their first action, and with their last action twice."""
        return shifted(plans) if self._spline is None else self._spline.shifted(plans)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        """Begin with the mean and the elites of the last search, shifted by one action.

        Otherwise, begin with the middle action. The shifted mean is a guess for any state, so it is
        used even if another action was played, or if `state` is not the expected one.
        """
        middle = (self.low + self.high) / 2
        mean = np.broadcast_to(middle, (self.num_knots, *middle.shape)).copy()
        none, old = np.empty((0, *mean.shape)), np.empty((0, *mean.shape))
        if kept is not None:
            mean, old = self.shifted(kept.memory.mean[None])[0], self.shifted(kept.memory.elites)
        std = np.broadcast_to(self.std, mean.shape).copy()
        return _Memory(mean, std, search.remaining, none, np.empty(0), old)

    def _noise(self, rng: np.random.Generator, count: int) -> Floats:
        """Return noise ``(count, D, *action_shape)`` with a standard deviation of 1."""
        white = rng.standard_normal((count, self.num_knots, *self.low.shape))
        return filtered(white, np.sqrt(self._power)) if self.beta else white

    def _batch_size(self, memory: _Memory, iterations: int) -> int:
        """Return the number of plans in a batch.

        It is the planner's `batch`, or less if the budget is too small for `iterations` such
        batches. Plans are assumed to be as long as the earlier ones were on average.
        """
        if memory.budget is None:
            return self.batch
        most = int((memory.budget - self._cost) // self._usual_length(memory)) // iterations
        return max(1, min(self.batch, most))

    def _usual_length(self, memory: _Memory) -> float:
        """Return how many transitions a plan has cost on average."""
        return memory.steps / memory.count if memory.count else float(self._cost)

    def _affords(self, search: Search, count: int) -> bool:
        """Return whether the budget allows for `count` more plans, and then for the mean plan."""
        cost = math.ceil(count * self._usual_length(search.memory))
        return search.has(self._cost + max(self._cost, cost))

    def _roll_out(self, state: Row, search: Search, plans: Floats) -> tuple[Floats, Floats]:
        """Roll plans out from the first state; return the clipped plans and their values.

        Episodes may end early, but this is not known before. If the budget is too small for all N
        plans ``(N, D, *action_shape)`` at full length, they are rolled out in parts, each as large
        as the budget allows at full length, and only the first M of them. The results are
        ``(M, D, *action_shape)`` and ``(M,)``.
        """
        found, memory = [np.empty(0)], search.memory
        plans, done = self._clipped(plans), 0
        actions = self._actions_of(plans)
        while done < len(actions) and (not done or search.affords(2 * self._cost)):
            # Leave room for the mean.
            most = search.fit(len(actions) - done + 1, self._cost) - 1
            steps, values = self._value(state, search, actions[done : done + most])
            memory.count, memory.steps = memory.count + len(steps), memory.steps + int(steps.sum())
            found.append(values)
            done += most
        return plans[:done].astype(np.float64), np.concatenate(found)

    def _value(self, state: Row, search: Search, actions: NDArray[Any]) -> tuple[Any, Floats]:
        """Roll out `actions`, and keep them if they are the best.

        Return the cost and the value of each plan; see `Objective`.
        """
        goal, roots = self.objective, self._roots(state)
        count, own = len(roots), slice(None, None, len(roots))
        rows = np.repeat(actions, count, axis=0)
        rollout = search.rollout_batch(
            rows,
            state if count == 1 else np.tile(roots, (len(actions), 1)),
            self.dt,
            return_observations=goal.needs_observations,
        )
        steps, each = lengths(rollout), goal.values(rows, rollout).reshape(-1, count)
        values = at_risk(each, self.risk)
        scores = None if goal.is_score and count == 1 else values
        over = ended(rollout)[own]
        search.keep_rollout(actions, rollout.rewards[own], steps[own], over, scores)
        return steps.reshape(-1, count).sum(axis=1), values

    def _roots(self, state: Row) -> NDArray[np.uint8]:
        """Return the state and its variants ``(K, nbytes)``; equal ones count once."""
        made = (self.env.make_state(state, **variant) for variant in self.variants)
        return np.stack(list({row.tobytes(): row for row in (state, *made)}.values()))

    def _clipped(self, plans: Floats) -> NDArray[Any]:
        """Return `plans` within the bounds, in the dtype of the actions."""
        clipped: NDArray[Any] = np.clip(plans, self.low, self.high)
        return clipped.astype(self.env.action_space.dtype)

    def _actions_of(self, plans: NDArray[Any]) -> NDArray[Any]:
        """Return the actions of clipped plans; those of a cubic spline may have to be clipped."""
        if self._spline is None:
            return plans
        return self._clipped(self._spline.actions(plans.astype(np.float64)))

    def _report(self, search: Search, note: str = "") -> None:
        """Report the best score, if it is what the planner maximises."""
        is_score = self.objective.is_score and not self.variants
        search.report(search.best.score if is_score else -np.inf, note)

    def _best_plan(self, state: Row, search: Search) -> Plan:
        """Roll out the mean, and return the best of all plans that were rolled out."""
        mean = search.memory.mean
        self._value(state, search, self._actions_of(self._clipped(mean[None])))
        self._report(search)
        actions, rewards = search.best.found
        return search.plan(state, actions, rewards, self.dt, ended=search.best.ended, mean=mean)


class CEM(GaussianPlanner):
    """Draw plans from a normal distribution, fit it to the best of them, and repeat.

    R. Y. Rubinstein and D. P. Kroese, "The Cross-Entropy Method", 2004; P.-T. de Boer, D. P.
    Kroese, S. Mannor and R. Y. Rubinstein, "A tutorial on the cross-entropy method", Annals of
    Operations Research 134, 2005 (continuous optimisation with smoothed updates); for model
    predictive control as in K. Chua, R. Calandra, R. McAllister and S. Levine, "Deep reinforcement
    learning in a handful of trials using probabilistic dynamics models", NeurIPS 2018.

    Differences from these works: plans are clipped to the bounds (Chua et al. draw from a truncated
    normal distribution, and make it narrower near the bounds). The mean is rolled out at the end,
    and the best of all plans is returned (Chua et al. play the mean). `advance` fills the end of
    the shifted mean with the last action instead of 0. The search ends before its budget is spent
    if all standard deviations have fallen to a thousandth of their initial values.

    Parameters
    ----------
    env, horizon, std, **options
        See `GaussianPlanner` and `PlanOptions`. `std` is the first standard deviation.
    batch : int
        The number of plans in each iteration; it is smaller if the budget would otherwise allow for
        fewer than five iterations.
    elites : int
        The number of best plans to which the distribution is fitted, less than `batch`; in smaller
        batches, it is reduced in proportion.
    alpha : float
        The weight of the old mean and standard deviation in the new ones, from 0 to 1.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import CEM
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = CEM(env, horizon=20, batch=100).plan(state, budget=20_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 200,
        elites: int = 20,
        std: float = 0.5,
        alpha: float = 0.1,
        **options: Unpack[PlanOptions],
    ) -> None:
        super().__init__(env, horizon, batch, std, **options)
        self.elites, self.alpha = as_count("elites", elites), as_number("alpha", alpha, 0.0, 1.0)
        if self.elites >= self.batch:
            raise InputError(f"elites must be less than batch = {self.batch}, got {self.elites}")

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        # If episodes are shorter than assumed, a batch is too small, and the next one is larger.
        while self._affords(search, (batch := self._batch_size(memory, _CEM_ITERATIONS)) // 2 + 1):
            mean, std = memory.mean, memory.std
            if not np.any(std > _CONVERGED * self.std):
                break
            plans = mean + std * self._noise(search.rng, batch)
            plans, returns = self._roll_out(state, search, plans)
            elites = max(1, self.elites * len(plans) // self.batch)
            if len(plans) > max(elites, self._batch_size(memory, _CEM_ITERATIONS) // 2):
                best = plans[np.argsort(-returns, kind="stable")[:elites]]
                memory.mean, memory.std = fitted(best, mean, std, self.alpha)
            self._report(search, f"std {(memory.std / self.std).mean():.3f} of the first")
        return self._best_plan(state, search)


class ICEM(GaussianPlanner):
    """The cross-entropy method with coloured noise, and elites that are kept.

    C. Pinneri, S. Sawant, S. Blaes, J. Achterhold, J. Stueckler, M. Rolinek and G. Martius,
    "Sample-efficient cross-entropy method for real-time planning", CoRL 2020, Algorithm 1. Noise
    has a power spectrum of ``f**-beta``, and batches become smaller. Elites are kept for the next
    iteration. For the next search, the mean and the kept elites are shifted by one action. The
    result is the best plan, not the mean.

    Differences from the paper: elites that are kept within a search are not rolled out again,
    because that would give the same returns. The mean is rolled out after the last iteration
    instead of in it. The search ends before its budget is spent if all standard deviations have
    fallen to a thousandth of their initial values.

    Parameters
    ----------
    env, horizon, std, beta, **options
        See `GaussianPlanner` and `PlanOptions`. `horizon` is h, and `std` is the
        first standard deviation.
    batch : int
        The number of plans in the first iteration, N; it is smaller if the budget would otherwise
        allow for fewer than three iterations.
    elites, alpha
        As in `CEM`; `elites` is K.
    decay : float
        The number of plans is divided by this factor after each iteration, but is at least
        ``2 * elites``.
    kept : float
        The fraction of the elites that is kept, from 0 to 1.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import ICEM
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = ICEM(env, horizon=20, batch=50).plan(state, budget=10_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 100,
        elites: int = 10,
        std: float = 0.5,
        beta: float = 1.0,
        decay: float = 1.25,
        kept: float = 0.3,
        alpha: float = 0.1,
        **options: Unpack[PlanOptions],
    ) -> None:
        super().__init__(env, horizon, batch, std, beta, **options)
        self.elites, self.decay = as_count("elites", elites), as_number("decay", decay, 1.0)
        self.kept = as_number("kept", kept, 0.0, 1.0)
        self.alpha = as_number("alpha", alpha, 0.0, 1.0)
        if 2 * self.elites > self.batch:
            raise InputError(f"elites must be at most batch / 2 = {batch / 2:g}, got {elites}")

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        memory = super()._begin(state, search, kept)
        memory.old = memory.old[: int(self.kept * len(memory.old))]
        return memory

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        while self._affords(search, self._sizes(memory)[0] // 2 + 1):
            mean, std = memory.mean, memory.std
            if not np.any(std > _CONVERGED * self.std):
                break
            batch, _, kept = self._sizes(memory)
            plans = mean + std * self._noise(search.rng, batch)
            old = memory.old
            if memory.budget is not None:  # the last search may have had a larger budget
                old = old[: max(0, memory.budget // self.horizon - 1 - batch)]
            if len(old):  # the last action of shifted elites is drawn at random
                old[:, -1] = (mean + std * self._noise(search.rng, len(old)))[:, -1]
            plans, returns = self._roll_out(state, search, np.concatenate([plans, old]))
            wanted, elites, kept = self._sizes(memory)
            if len(plans) > max(elites, wanted // 2):  # as in CEM
                plans = np.concatenate([memory.elites[:kept], plans])
                returns = np.concatenate([memory.returns[:kept], returns])
                order = np.argsort(-returns, kind="stable")[:elites]
                memory.elites, memory.returns = plans[order], returns[order]
                memory.mean, memory.std = fitted(memory.elites, mean, std, self.alpha)
                memory.iteration, memory.old = memory.iteration + 1, old[:0]
            self._report(search, f"std {(memory.std / self.std).mean():.3f} of the first")
        return self._best_plan(state, search)

    def _sizes(self, memory: _Memory) -> tuple[int, int, int]:
        """Return how many plans a batch has, how many are elites, and how many of these to keep."""
        first = self._batch_size(memory, _ICEM_ITERATIONS)
        elites = max(1, self.elites * first // self.batch)
        batch = min(first, max(int(first * self.decay**-memory.iteration), 2 * elites))
        return batch, elites, int(self.kept * elites)


class MPPI(GaussianPlanner):
    """Add noise to the mean plan, weight the noise by the returns, and add its average to the mean.

    G. Williams, N. Wagener, B. Goldfain, P. Drews, J. M. Rehg, B. Boots and E. A. Theodorou,
    "Information theoretic MPC for model-based reinforcement learning", ICRA 2017, Algorithm 2;
    G. Williams, P. Drews, B. Goldfain, J. M. Rehg and E. A. Theodorou, "Information-theoretic model
    predictive control: theory and applications to autonomous driving", IEEE Transactions on
    Robotics 34, 2018.

    Differences from the papers:

    - Rewards take the place of costs.
    - All plans are drawn around the mean. (The second paper draws a fraction of them around 0.)
    - By default, there is no control cost (``alpha=1``), noise is pink (``beta=1``), and
      `temperature` is relative to the spread of the returns.
    - The noise of a plan is the difference between the clipped plan and the mean.
    - The first plan of each batch is the mean without noise.
    - The mean is not smoothed afterwards. Instead, noise may be coloured (`beta`), and the control
      cost uses the covariance of the coloured noise.
    - The mean is updated as often as the budget allows, and rolled out at the end. The best of all
      plans is returned (the papers play the mean).

    Parameters
    ----------
    env, horizon, std, beta, **options
        See `GaussianPlanner` and `PlanOptions`.
    batch : int
        The number of plans in each batch, K; it is reduced if the budget is too small.
    temperature : float
        λ, in units of the standard deviation of the batch's returns. The lower it is, the more the
        best plans count.
    alpha : float
        From 0 to 1: the control cost is ``(1 - alpha) * λ * u^T Σ^-1 ε``. With 1, it is 0.
    relative : bool
        If False, `temperature` is λ in units of the rewards.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import MPPI
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = MPPI(env, horizon=20, batch=100).plan(state, budget=20_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 128,
        std: float = 0.5,
        temperature: float = 0.1,
        alpha: float = 1.0,
        beta: float = 1.0,
        relative: bool = True,
        **options: Unpack[PlanOptions],
    ) -> None:
        super().__init__(env, horizon, batch, std, beta, **options)
        self.temperature = as_number("temperature", temperature, 1e-6)
        self.alpha, self.relative = as_number("alpha", alpha, 0.0, 1.0), bool(relative)

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        while self._affords(search, 1):
            mean = memory.mean
            noise = self.std * self._noise(search.rng, self._batch_size(memory, 1))
            noise[0] = 0.0
            plans, returns = self._roll_out(state, search, mean + noise)
            noise = plans - mean  # of the plans that the budget allowed, after clipping
            memory.mean = mean + np.tensordot(self.weights(returns, mean, noise), noise, axes=1)
            self._report(search)
        return self._best_plan(state, search)

    def weights(self, returns: Floats, mean: Floats, noise: Floats) -> Floats:
        """Return the weights ``(K,)`` of plans; their sum is 1.

        The formula is that of Algorithm 2 in the first paper, where η normalises the weights. The
        factor ``1 - alpha`` is from the second paper::

            S = -returns + (1 - alpha) * λ * u^T Σ^-1 ε
            w = exp(-(S - min(S)) / λ) / η

        Parameters
        ----------
        returns : array ``(K,)``
        mean : array ``(D, *action_shape)``
            u.
        noise : array ``(K, D, *action_shape)``
            ε.
        """
        spread = float(returns.std()) if self.relative else 1.0
        temperature = self.temperature * max(spread, 1e-9)
        # Σ is the product of a covariance in time, which the spectrum defines, and one of actions.
        scaled = filtered(mean[None], 1 / self._power)[0] / self.std**2
        cost = (1 - self.alpha) * np.tensordot(noise, scaled, axes=mean.ndim)
        exponents = returns / temperature - cost
        weights: Floats = np.exp(exponents - np.max(exponents))
        weights /= weights.sum()
        return weights


class PredictiveSampling(GaussianPlanner):
    """Add noise to the best plan so far, and keep the best of the results.

    T. Howell, N. Gileadi, S. Tunyasuvunakool, K. Zakka, T. Erez and Y. Tassa, "Predictive sampling:
    real-time behaviour synthesis with MuJoCo", 2022, section 3: plans are splines, noise is added
    to their knots, and the first of each batch has none.

    Differences from the report: the number of batches follows from the budget (there, it is one).
    Knots are clipped to the bounds of the actions, as in the authors' program.

    Parameters
    ----------
    env, horizon, batch, std, beta, **options
        See `GaussianPlanner` and `PlanOptions`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import PredictiveSampling
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> planner = PredictiveSampling(env, horizon=20, batch=32, knots=5, spline="linear")
    >>> plan = planner.plan(state, budget=10_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 32,
        std: float = 0.5,
        beta: float = 0.0,
        **options: Unpack[PlanOptions],
    ) -> None:
        super().__init__(env, horizon, batch, std, beta, **options)

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        while self._affords(search, 1):
            noise = self.std * self._noise(search.rng, self._batch_size(memory, 1))
            noise[0] = 0.0
            plans, returns = self._roll_out(state, search, memory.mean + noise)
            memory.mean = plans[np.argmax(returns)]
            self._report(search)
        return self._best_plan(state, search)
