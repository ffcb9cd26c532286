"""Episodes that were cut off: what is known of their last observation, and what it is worth."""

from itertools import islice
from typing import Any

import pytest
import torch
from counting import Count, Follower, Recurrent
from making import LANES, same_lanes, single_lanes, two_groups, two_groups_here
from usual import first_of

from plangym_like.batchers.rollout import BaseActorModule, Fragment, same
from plangym_like.errors import InputError

T = 15
EVERYWHERE = pytest.mark.parametrize(
    "make", first_of([same_lanes, two_groups, single_lanes, two_groups_here])
)


@EVERYWHERE
@pytest.mark.parametrize("sticky", [False, True])
def test_a_recurrent_critic_estimates_the_last_observation(make: Any, sticky: bool) -> None:
    """Played again step by step, it says the same of what it would have been shown."""
    torch.manual_seed(0)
    actor = Recurrent()
    with make(lambda: Count(limit=6), actor, T, seed=0, sticky=sticky) as it:
        assert check_again(list(islice(it, 3)), actor) >= 2 * LANES


def test_a_recurrent_critic_estimates_some_lanes_of_a_step() -> None:
    torch.manual_seed(0)
    actor = Recurrent()
    with same.rollout([Count(limit=limit) for limit in (4, 6, 5)], actor, T, seed=0) as it:
        assert check_again(list(islice(it, 3)), actor) > 2 * LANES


def check_again(fragments: list[Fragment], actor: Recurrent) -> int:
    """Compare values and memories of last observations with the actor's; return their number."""
    seen = 0
    for fragment in fragments:
        state, final = fragment.state, fragment.final
        assert final is not None
        inputs, hx = fragment.inputs(), fragment.hx
        expected = {}
        for t in range(T):
            _, hx, _ = actor.step(*(part[t : t + 1] for part in inputs), hx=hx)
            for k in (final.t == t).nonzero().flatten().tolist():
                lane = int(final.lane[k])
                one = slice(lane, lane + 1)
                value = actor.value(
                    final.obs[k][None, None],
                    state.act[t : t + 1, one],
                    state.rew[t : t + 1, one],
                    torch.zeros(1, 1, dtype=torch.bool),
                    hx=hx[:, one],
                )
                expected[k] = float(value), hx[:, lane]
        assert len(expected) == len(final.t)
        seen += len(expected)
        for k, (value, memory) in expected.items():
            assert float(final.value[k]) == pytest.approx(value, abs=1e-5)
            assert torch.allclose(final.hx[:, k], memory, atol=1e-5)
    return seen


@EVERYWHERE
def test_an_episode_that_terminated_is_worth_nothing_more(make: Any) -> None:
    class Both(Count):
        """Terminates, is cut off, or both at once, in turn."""

        ends = ((True, False), (False, True), (True, True))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.number = getattr(self, "number", -1) + 1
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> Any:
            obs, reward, *_ = super().step(action)
            ends = self.ends[self.number % 3] if self.index == 4 else (False, False)
            return obs, reward, *ends, {}

    with make(Both, Follower(), T, seed=0, infos=False) as it:
        fragment = next(it)
    final, state = fragment.final, fragment.state
    assert final is not None
    cut = (state.truncated & ~state.terminated)[final.t, final.lane]
    assert 0 < int(cut.sum()) < len(cut)
    assert torch.equal(final.value, torch.where(cut, 4.0, 0.0))
    expected = state.rew.clone()
    expected[final.t, final.lane] += 0.5 * final.value
    assert torch.equal(fragment.rewards(0.5), expected)
    assert not torch.equal(state.rew, expected)


def test_the_last_estimate_leaves_no_trace_in_the_noise() -> None:
    actions = []
    for keep_final in (True, False):
        torch.manual_seed(0)
        with same.rollout(
            [Count(limit=4) for _ in range(3)], Recurrent(), 40, seed=1, keep_final=keep_final
        ) as it:
            actions.append(next(it).state.act)
    assert torch.equal(*actions)


def test_rewards_that_cannot_be_known() -> None:
    class Blind(BaseActorModule):
        def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
            return torch.zeros(obs.shape[:-1], dtype=torch.int64), (), {}

    def fragment(env: Any, actor: Any, **options: Any) -> Fragment:
        with same.rollout([env], actor, 20, seed=0, **options) as it:
            return next(it)

    for actor, options in ((Blind(), {}), (Follower(), {"keep_final": False})):
        with pytest.raises(InputError, match="truncated"):
            fragment(Count(limit=6), actor, **options).rewards(0.9)
        whole = fragment(Count(), actor, **options)
        assert torch.equal(whole.rewards(0.9), whole.state.rew)


def test_values_of_several_numbers() -> None:
    class Heads(Follower):
        def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
            actions, _, info = super().forward(obs, *rest, hx=hx)
            value = torch.stack((info["value"], 2 * info["value"]), -1)
            return actions, (), {"value": value.double()}

    with same.rollout([Count(limit=6) for _ in range(2)], Heads(), 9, seed=0) as it:
        fragment = next(it)
    assert fragment.final is not None
    assert fragment.final.value.tolist() == [[6.0, 12.0]] * 2
    assert fragment.bootstrap.dtype == torch.float64
    assert fragment.bootstrap.shape == (1, 2, 2)
    rewards = fragment.rewards(0.5)
    assert rewards.shape == (9, 2, 2)
    assert (rewards - fragment.state.rew[..., None])[5].tolist() == [[3.0, 6.0]] * 2
