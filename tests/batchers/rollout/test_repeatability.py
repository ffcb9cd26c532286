"""Equal seeds give equal rollouts, whoever collects them; and no two lanes act in step."""

from itertools import islice
from typing import Any

import gymnasium
import pytest
import torch
from counting import Count, Policy, Recurrent
from usual import first_of

from plangym_like.batchers.rollout import Fragment, multi, same, single
from plangym_like.vector.tree import tree_leaves


def _cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def _assert_same(ours: list[Fragment], theirs: list[Fragment]) -> None:
    for mine, its in zip(ours, theirs, strict=True):
        pairs = zip(tree_leaves(tuple(mine[:-1])), tree_leaves(tuple(its[:-1])), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("training", first_of([True, False]))
@pytest.mark.parametrize("learning", first_of([True, False]))
def test_the_number_of_workers_changes_nothing(training: bool, learning: bool) -> None:
    """Not even where the actor samples, and where weights change in step."""
    found = []
    for n_workers in (0, 1, 2):
        torch.manual_seed(0)
        actor = Policy().train(training)
        fragments = []
        with multi.rollout(
            _cart_pole, actor, 40, 3, 2, 6, 2, seed=7, ordered=True, workers=n_workers
        ) as it:
            for fragment in islice(it, 6):
                fragments.append(fragment)
                if learning:
                    with torch.no_grad():
                        actor.policy[0].weight += 0.1 * fragment.state.rew.sum()
        found.append(fragments)
    _assert_same(found[0], found[1])
    _assert_same(found[0], found[2])
    assert found[0][0].state.fin.any()
    if learning:
        # Three fragments are requested at once, with the weights of that time.
        assert [int(fragment.version[0]) for fragment in found[0]] == [0, 0, 0, 1, 2, 3]


def test_single_equals_itself_here_and_same() -> None:
    torch.manual_seed(0)
    actor = Recurrent(4, 2)
    found = []
    for n_workers in (0, 1):
        with single.rollout(_cart_pole, actor, 30, 4, seed=3, workers=n_workers) as it:
            found.append(list(islice(it, 3)))
    with same.rollout([_cart_pole() for _ in range(4)], actor, 30, seed=3) as it:
        found.append(list(islice(it, 3)))
    _assert_same(found[0], found[1])
    _assert_same(found[0], found[2])


def test_no_two_lanes_act_in_step() -> None:
    """Even where all observe the same, noise is each lane's own."""
    actor = Recurrent()
    with torch.no_grad():
        actor.policy.weight.zero_(), actor.policy.bias.zero_()
    with multi.rollout(lambda: Count(200), actor, 40, 4, 4, 8, 4, workers=2, seed=0) as it:
        actions = torch.cat([next(it).state.act, next(it).state.act]).T
    assert len({tuple(lane.tolist()) for lane in actions}) == 16
    with multi.rollout(_cart_pole, Policy().eval(), 5, 4, 4, 8, 4, workers=2, seed=0) as it:
        starts = next(it).state.obs[0]
    assert len({tuple(lane.tolist()) for lane in starts}) == 16
