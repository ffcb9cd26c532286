"""Tree searches: budgets, seeds, replays, known optima, priors and values, and the tree itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from small_envs import BanditTree

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import PUCT, UCT, OpenLoopMCTS, play
from plangym_like.planners.search_tree import SearchTree
from plangym_like.planners.uct import tree_bounds, ucb1

Maker = Callable[..., Any]


def _equal(obs: Any) -> tuple[Any, Any]:
    """Return equal priors of two actions, and the same value of all states."""
    return np.full((len(obs), 2), 0.5), np.zeros(len(obs))


def _puct(env: Any, **options: Any) -> PUCT:
    size = len(PUCT(env, _equal).actions)
    return PUCT(
        env, lambda obs: (np.full((len(obs), size), 1 / size), np.zeros(len(obs))), **options
    )


ALL = [UCT, OpenLoopMCTS, _puct]


@pytest.mark.parametrize("maker", ALL)
def test_a_complete_tree_finds_the_best_choices(maker: Maker) -> None:
    with plangym_like.make(BanditTree) as env:
        env.reset(seed=0)
        plan = maker(env, **({"horizon": 2} if maker is OpenLoopMCTS else {})).plan(
            budget=5_000, seed=0
        )
        assert plan.actions.tolist() == [2, 1]
        assert plan.score == 0.9
        assert plan.next_action == 2
        # PUCT counts the value of a node that it evaluated, here 0, as one of its returns.
        assert plan.info["values"][1] == pytest.approx(0.6, abs=0.02)
        if maker is UCT:
            assert plan.info["values"] == pytest.approx([0.3, 0.6, 0.9])
            assert plan.info["value"] == pytest.approx(0.9)
        else:
            # Visits concentrate on the best choice, and the mean return goes to the optimum.
            assert plan.info["visits"][2] > 0.8 * plan.info["visits"].sum()
            assert plan.info["value"] == pytest.approx(0.9, abs=0.1)
        if maker is not OpenLoopMCTS:
            assert plan.spent.transitions <= 9 * 2 * 10, "no more than there is to find"
            assert plan.info["nodes"] == 13


@pytest.mark.parametrize(
    ("maker", "options"),
    [(UCT, {"outcomes": 4}), (OpenLoopMCTS, {"horizon": 2, "stochastic": True})],
)
def test_random_rewards_of_known_means(maker: Maker, options: dict[str, Any]) -> None:
    with plangym_like.make(BanditTree, random=True) as env:
        env.reset(seed=0)
        plan = maker(env, **options).plan(budget=10_000, seed=0)
        assert plan.next_action == 2
        assert plan.info["visits"][2] > 0.8 * plan.info["visits"].sum()
        assert plan.info["values"][2] == pytest.approx(0.9, abs=0.05)
        assert plan.info["values"][1] == pytest.approx(0.6, abs=0.1)
        # The plan is the luckiest one, and its seeds repeat the luck.
        assert plan.score == 1.0
        assert plan.seeds is not None
        assert plan.replay(env) == 1.0


@pytest.mark.parametrize("maker", ALL)
def test_any_action_may_be_played(maker: Maker) -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        for action in (0, 1):
            planner = maker(env, batch=4)
            plan = planner.plan(state, budget=1_000, seed=0)
            planner.advance(action)
            after = env.step_batch([action], state).states[0]
            following = planner.plan(after, budget=40, seed=1)
            kept = plan.info["visits"][action]
            assert 0.5 * kept < following.info["visits"].sum() <= kept + 40
            planner.advance(action)
            elsewhere = planner.plan(state, budget=41, seed=1)
            assert elsewhere.info["visits"].sum() <= 41, "the action did not lead to this state"


def test_returns_after_advance_have_one_horizon() -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        planner = OpenLoopMCTS(env, horizon=8)
        lengths = []
        for _ in range(7):
            plan = planner.plan(state, budget=200, seed=0)
            # The pole stands for so few steps, so each return is the number of steps in it.
            assert np.nanmax(plan.info["values"]) == np.nanmin(plan.info["values"])
            assert np.nanmax(plan.info["values"]) == len(plan)
            lengths.append(len(plan))
            state = env.step_batch([plan.next_action], state).states[0]
            planner.advance()
        assert lengths == [8, 7, 6, 5, 4, 8, 7]


def _optimum(env: Any, discount: float) -> np.ndarray:
    """Return the optimal values ``(S, A)`` of the actions of a toy text environment."""
    table = env.gym_env.unwrapped.P
    values = np.zeros((len(table), len(table[0])))
    for _ in range(500):
        best = values.max(axis=1)
        values = np.array(
            [
                [
                    sum(p * (r + discount * best[s] * (not ended)) for p, s, r, ended in outcomes)
                    for outcomes in actions.values()
                ]
                for actions in table.values()
            ]
        )
    return values


def test_values_on_slippery_ice_are_close_to_the_optimum() -> None:
    with plangym_like.make("FrozenLake-v1") as env:
        env.reset(seed=0)
        optimum = _optimum(env, 0.5)[14]
        plan = UCT(env, outcomes=4, discount=0.5, rollout=5).plan(
            env.make_state(s=14), budget=10_000, seed=0
        )
        assert plan.info["value"] == pytest.approx(optimum.max(), rel=0.1)
        assert np.nanmax(plan.info["values"]) == pytest.approx(optimum.max(), rel=0.06)
        assert optimum[plan.next_action] > 0.98 * optimum.max()
        assert plan.info["visits"].argmin() == optimum.argmin()
        assert plan.replay(env) == plan.score == 1.0


def test_few_outcomes_of_many_are_told_apart() -> None:
    with plangym_like.make("Blackjack-v1") as env:
        state = env.reset(seed=1).state
        spent = []
        for widening in (1.0, 0.5):
            planner = UCT(env, outcomes=5, widening=widening, rollout=3)
            plan = planner.plan(state, budget=2_000, seed=0)
            assert plan.replay(env) == plan.score
            spent.append(plan.info["visits"].sum() / plan.spent.transitions)
        assert spent[1] > spent[0], "known outcomes cost nothing"


def test_after_another_outcome_the_best_plan_is_forgotten() -> None:
    with plangym_like.make("FrozenLake-v1") as lake:
        lake.reset(seed=0)
        start, others = lake.make_state(s=14), 0
        for seed in range(3):
            for place in range(3):
                planner = UCT(lake, outcomes=4, rollout=5)
                plan = planner.plan(start, budget=800, seed=6 + 2 * seed)
                tree = planner._last[1].memory.tree
                first = int(np.flatnonzero(planner.actions == plan.actions[0])[0])
                outcomes = tree.outcomes_of(np.array([0]), np.array([first]))[0]
                seed_of_this = int(tree["seed"][outcomes[place % len(outcomes)]])
                played = lake.step_batch(plan.actions[:1], start, seeds=seed_of_this)
                planner.advance()
                after = planner.plan(played.states[0], budget=20, seed=1)
                assert after.replay(lake) == after.score
                others += seed_of_this != plan.seeds[0]
        assert others


@pytest.fixture
def bandit() -> Iterator[Any]:
    with plangym_like.make(BanditTree) as env:
        env.reset(seed=0)
        yield env


def _priors(obs: Any, *rows: float) -> Any:
    return np.tile(rows, (len(obs), 1))


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_values_guide_the_search(bandit: Any, choice: int) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 1 / 3, 1 / 3, 1 / 3), 5.0 * (obs == 1 + choice)

    plan = PUCT(bandit, evaluate, batch=1).plan(budget=6, seed=0)
    assert plan.next_action == choice


def test_priors_guide_the_search(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 0.0, 0.1, 0.9), np.zeros(len(obs))

    planner = PUCT(bandit, evaluate, batch=1, observe=lambda state: np.zeros(1, int))
    plan = planner.plan(budget=8, seed=0)
    assert plan.info["visits"][0] == 0, "a prior of 0 is never tried"
    assert plan.info["visits"].argmax() == 2
    assert np.array_equal(plan.info["prior"], [0.0, 0.1, 0.9])
    # Without an observation of the root, its priors are equal.
    plan = PUCT(bandit, evaluate, batch=1).plan(budget=8, seed=0)
    assert np.allclose(plan.info["prior"], 1 / 3)
    assert plan.info["visits"][0] > 0


def test_noise_is_mixed_into_the_priors_of_the_root(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 0.0, 0.5, 0.5), np.zeros(len(obs))

    observe = np.zeros(1, int)
    planner = PUCT(bandit, evaluate, noise=0.25, observe=lambda state: observe)
    priors = np.array([planner.plan(budget=5, seed=seed).info["prior"] for seed in range(40)])
    assert np.allclose(priors.sum(axis=1), 1)
    assert np.all(priors[:, 0] == 0)
    assert np.all(priors[:, 1] >= 0.75 * 0.5)
    assert np.ptp(priors[:, 1]) > 0.1
    same = [planner.plan(budget=5, seed=7).info["prior"].tolist() for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("priors", "values", "words"),
    [
        (np.full((1, 2), 0.5), np.zeros(1), r"priors \(N, 3\) and values \(N,\), got shapes"),
        (np.full((1, 3), 1 / 3), np.zeros((1, 1)), r"got shapes \(1, 3\) and \(1, 1\)"),
        (np.full((2, 3), 1 / 3), np.zeros(1), r"got shapes \(2, 3\) and \(1,\)"),
        (np.array([[0.0, 1.0, 2.0]]), np.zeros(1), "probabilities with a sum of 1"),
        (np.array([[-0.5, 0.5, 1.0]]), np.zeros(1), "probabilities with a sum of 1"),
        (np.full((1, 3), np.nan), np.zeros(1), "probabilities with a sum of 1"),
        (np.full((1, 3), 1 / 3), np.array([np.inf]), "finite values"),
    ],
)
def test_evaluations_that_are_refused(bandit: Any, priors: Any, values: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        PUCT(bandit, lambda obs: (priors, values), batch=1).plan(budget=10, seed=0)


def test_rollouts_take_the_place_of_a_value() -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        planner = PUCT(env, rollout=20)
        assert play(planner, 40, state, budget=1_000, seed=0).score == 40
        plan = planner.plan(state, budget=210, seed=0)
        assert 190 <= plan.spent.transitions <= 210
        # Every return of random actions is from 1 to 21: a reward for each action until the end.
        assert 1 < plan.info["value"] <= 21


def test_values_and_rollouts_are_averaged() -> None:
    """On ice that is not slippery, random actions from the first state earn nothing in 2 steps."""
    with plangym_like.make("FrozenLake-v1", is_slippery=False) as env:
        state = env.reset(seed=0).state

        def evaluate(observations: Any) -> tuple[Any, Any]:
            return np.full((len(observations), 4), 0.25), np.full(len(observations), 3.0)

        half = PUCT(env, evaluate, rollout=1).plan(state, budget=8, seed=0)
        whole = PUCT(env, evaluate).plan(state, budget=4, seed=0)
        assert (half.info["value"], whole.info["value"]) == (1.5, 3.0)


def test_a_time_ends_a_search_that_finds_nothing_new(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 1 / 3, 1 / 3, 1 / 3), np.zeros(len(obs))

    planner = PUCT(bandit, evaluate)
    plan = planner.plan(budget=200, seed=0)
    planner.advance()
    state = bandit.step_batch([plan.next_action], plan.state).states[0]
    rest = planner.plan(state, seconds=0.01, seed=0)
    assert rest.spent.transitions == 0, "the tree was complete"
    assert rest.ended and rest.replay(bandit) == rest.score


NO_STATE = np.zeros((1, 0), np.uint8)


def _grown(seed: int, num_actions: int = 3, rounds: int = 60) -> SearchTree:
    """Return a tree of random returns, grown by descents in batches."""
    rng = np.random.default_rng(seed)
    tree = SearchTree(num_actions, NO_STATE)
    for _ in range(rounds):
        paths = tree.descend(np.zeros(8, int), partial(tree_bounds, tree, rng, 1.0, 1.0))
        ended = rng.random(len(paths.parents)) < 0.2
        rewards = rng.normal(size=len(paths.parents))
        new = tree.expand(
            paths.parents, paths.actions, reward=rewards, gains=rewards[:, None], ended=ended
        )
        tree.back_up(paths, new, rng.normal(size=(8, 1)), 0.9)
    return tree


def _one_after_another(tree: SearchTree, count: int, virtual_loss: float) -> Counter[Any]:
    """Return how many of `count` descents take each action, by the formula, one at a time."""
    taken: Counter[Any] = Counter()
    coming = {0: count}
    while coming:
        node, arrivals = coming.popitem()
        totals, visits = tree.scaled(np.array([node]))
        under_way = np.zeros((1, tree.num_actions))
        for _ in range(arrivals):
            bounds = ucb1(
                totals,
                visits,
                0.7,
                visits.sum() + arrivals,
                pending=under_way,
                virtual_loss=virtual_loss,
            )
            under_way[0, bounds.argmax()] += 1
        for action, number in enumerate(under_way[0].astype(int)):
            child = tree["child"][node, action]
            if number:
                taken[node, action] = number
            if number and child >= 0 and not tree["ended"][child]:
                coming[child] = number
    return taken


@pytest.mark.parametrize("virtual_loss", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_descents_together_are_descents_one_after_another(seed: int, virtual_loss: float) -> None:
    tree = _grown(seed)
    assert tree.size > 100
    assert tree["ended"].any()
    bounds = partial(tree_bounds, tree, np.random.default_rng(0), 0.7, virtual_loss)
    for count in (1, 7, 64):
        paths = tree.descend(np.zeros(count, int), bounds)
        taken: Counter[Any] = Counter()
        for level in paths.levels:
            taken.update(zip(level.nodes.tolist(), level.actions.tolist(), strict=True))
        known = [node for node, _ in taken if tree["visits"][node].all()]
        one_by_one = _one_after_another(tree, count, virtual_loss)
        # Which untried action of a node comes first is random, how many descents take one is not.
        for node in known:
            for action in range(3):
                assert taken[node, action] == one_by_one[node, action]
        assert sum(taken[0, action] for action in range(3)) == count


def test_ucb1_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    visits = rng.integers(1, 9, (5, 4)).astype(float)
    totals = rng.random((5, 4)) * visits
    parents = visits.sum(axis=1, keepdims=True)
    bounds = ucb1(totals, visits, math.sqrt(2), parents)
    pending = ucb1(totals, visits, 0.5, parents, pending=2, virtual_loss=1.0)
    for row in range(5):
        for action in range(4):
            n, parent = visits[row, action], parents[row, 0]
            mean = totals[row, action] / n
            assert bounds[row, action] == pytest.approx(mean + math.sqrt(2 * math.log(parent) / n))
            lost = totals[row, action] / (n + 2) + 0.5 * math.sqrt(math.log(parent) / (n + 2))
            assert pending[row, action] == pytest.approx(lost)


def test_returns_are_those_of_the_paths() -> None:
    tree, rng = SearchTree(2, NO_STATE), np.random.default_rng(0)
    expected: dict[Any, list[float]] = {}
    for _ in range(40):
        paths = tree.descend(np.zeros(4, int), partial(tree_bounds, tree, rng, 1.0, 1.0))
        rewards = rng.normal(size=len(paths.parents))
        gains = rewards[:, None]
        new = tree.expand(paths.parents, paths.actions, reward=rewards, gains=gains)
        values = rng.normal(size=4)
        for node, value in zip(paths.ends(new), values, strict=True):
            path = tree.path(int(node))
            for depth, child in enumerate(path):
                rewards = [*tree["reward"][path[depth:]], value]
                total = sum(0.5**step * reward for step, reward in enumerate(rewards))
                edge = int(tree["parent"][child]), int(tree["action"][child])
                expected.setdefault(edge, []).append(total)
        tree.back_up(paths, new, values[:, None], 0.5)
    for (node, action), returns in expected.items():
        assert tree["visits"][node, action] == len(returns)
        assert tree["total"][node, action] == pytest.approx(sum(returns))
    assert tree["visits"][0].sum() == 160
    assert tree["visits"].sum() == sum(map(len, expected.values()))


def test_the_tree_below_a_node() -> None:
    tree = _grown(1)
    child = int(tree["child"][0, tree["visits"][0].argmax()])
    part = tree.below(child)
    assert part.size == sum(child in tree.path(node) for node in range(tree.size))
    assert np.array_equal(part["visits"][0], tree["visits"][child])
    assert part["visits"].sum() < tree["visits"].sum()
    for node in range(1, part.size):
        parent, action = part["parent"][node], part["action"][node]
        assert part["child"][parent, action] == node
        assert part["score"][node] == pytest.approx(part["reward"][part.path(node)].sum())


def test_outcomes_are_visited_as_often_as_they_are_drawn() -> None:
    rng, chances = np.random.default_rng(0), np.array([0.6, 0.3, 0.1])
    for widening, fewest in ((1.0, 2000), (0.5, math.ceil(2000**0.5))):
        tree = SearchTree(1, NO_STATE, outcomes=4, widening=widening)

        def draw(parents: Any, actions: Any, tree: SearchTree = tree) -> Any:
            keys = rng.choice(3, len(parents), p=chances)
            ended = np.ones(len(parents), bool)
            gains = 1.0 * keys[:, None]
            return tree.add_outcomes(parents, actions, keys, gains=gains, ended=ended)

        for _ in range(250):
            paths = tree.descend(np.zeros(8, int), partial(tree_bounds, tree, rng, 1.0, 1.0), draw)
            tree.back_up(paths, paths.parents, np.zeros((8, 1)), 1.0)
        assert tree.size == 4
        order = np.argsort(tree["key"][1:]) + 1
        samples, passes = tree["samples"][order], tree["passes"][order]
        assert passes.sum() == 2000
        assert samples.sum() == fewest
        assert np.allclose(passes / 2000, samples / fewest, atol=0.01)
        if widening == 1.0:
            assert np.allclose(samples / fewest, chances, atol=0.04)
            assert tree["total"][0, 0] / 2000 == pytest.approx(chances @ [0, 1, 2], abs=0.05)


def test_outcomes_beyond_the_limit_keep_the_proportions_of_the_others() -> None:
    tree, rng = SearchTree(1, NO_STATE, outcomes=2), np.random.default_rng(0)
    nodes = np.zeros(1, np.intp)
    for key in [0, 0, 0, 1] * 50:
        tree.add_outcomes(nodes, nodes, np.array([key]))
    for key in rng.integers(2, 2**31, size=2000):
        tree.add_outcomes(nodes, nodes, np.array([key]))
    assert tree.size == 3 and tree["samples"][1:].sum() == 2200
    assert tree["samples"][1] / 2200 == pytest.approx(0.75, abs=0.1)
