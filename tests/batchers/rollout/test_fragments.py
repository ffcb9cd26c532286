"""What a fragment says, in every mode, in a world where every number says where it comes from."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from counting import Count, Follower, Recurrent
from making import same_lanes, single_lanes, two_groups, two_groups_here
from small_envs import Nested
from usual import first_of

from plangym_like.batchers.rollout import BaseActorModule, Fragment, multi, same

T = 5


MODES: dict[str, tuple[Callable[..., Any], dict[str, Any], int]] = {
    # how, options, every how many-th fragment goes on where the last one ended
    "same": (same_lanes, {}, 1),
    "multi": (two_groups, {"n_per_batch": 1}, 2),
    "same seeded": (same_lanes, {"seed": 3}, 1),
    "single": (single_lanes, {}, 1),
    "single here": (single_lanes, {"workers": 0}, 1),
    "multi in one worker": (two_groups, {"n_per_batch": 1, "workers": 1}, 2),
    "multi here": (two_groups_here, {"n_per_batch": 1}, 2),
    "joined": (two_groups, {}, 1),
}


@pytest.fixture(params=first_of(MODES, 2))
def mode(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Fragment]]]:
    """``mode(factory, actor, count, **options)``: the first fragments of one group of lanes."""
    make, fixed, every = MODES[request.param]

    def collect(
        factory: Callable[[], Any], actor: BaseActorModule, count: int, **options: Any
    ) -> list[Fragment]:
        with make(factory, actor, **fixed, **options) as it:
            found = list(islice(it, 0, count * every, every))
        return found

    yield collect


@pytest.mark.parametrize("limit", [None, 6])
def test_every_number_is_where_it_belongs(
    mode: Callable[..., list[Fragment]], limit: int | None
) -> None:
    end = limit or 7
    fragments = mode(lambda: Count(7, limit), Follower(), 4)
    for number, fragment in enumerate(fragments):
        state, width = fragment.state, fragment.state.fin.shape[1]
        steps = torch.arange(number * T, number * T + T + 1)[:, None].expand(-1, width)
        index = steps % end
        assert state.obs.dtype == torch.uint8
        assert torch.equal(state.obs[..., 0], index.to(torch.uint8))
        assert torch.equal(state.stepno, index[:-1])
        assert torch.equal(state.act, index[:-1] % 4)
        assert state.rew.dtype == torch.float32
        assert torch.equal(state.rew, (10 * index[:-1] + state.act).to(torch.float32))
        ended = index[:-1] == end - 1
        assert torch.equal(state.fin, ended)
        assert torch.equal(state.terminated, ended & (limit is None))
        assert torch.equal(state.truncated, ended & (limit is not None))
        assert torch.equal(fragment.bootstrap, index[-1:].to(torch.float32))
        assert torch.equal(fragment.env["half"], (index[:-1] + 1) / 2)
        assert torch.equal(fragment.env["twice"][..., 1], (index[:-1] + 1).to(torch.int16))
        final = fragment.final
        assert final is not None
        assert torch.equal(final.obs[:, 0], torch.full_like(final.lane, end, dtype=torch.uint8))
        where = torch.zeros_like(ended)
        where[final.t, final.lane] = True
        assert torch.equal(where, ended)
        assert fragment.version.tolist() == [0] * width
        assert not fragment.frozen.any()
    for before, after in pairwise(fragments):
        assert torch.equal(before.state.obs[-1], after.state.obs[0])
        assert torch.equal(before.state.act[-1:], after.before.act)
        assert torch.equal(before.state.rew[-1:], after.before.rew)
        assert torch.equal(before.state.fin[-1:], after.before.fin)
    assert fragments[0].before.fin.all()


def test_the_inputs_are_those_that_the_actor_had(mode: Callable[..., list[Fragment]]) -> None:
    for fragment in mode(Count, Follower(), 3):
        obs, act, rew, fin = fragment.inputs()
        assert torch.equal(fragment.actor["before"], act)
        assert torch.equal(fragment.actor["earned"], rew)
        assert torch.equal(fragment.actor["begun"], fin)
        assert torch.equal(fragment.actor["value"], obs[..., 0].to(torch.float32))


@pytest.mark.parametrize("sticky", [False, True])
def test_a_recurrent_actor_is_replayed_from_its_state(
    mode: Callable[..., list[Fragment]], sticky: bool
) -> None:
    torch.manual_seed(0)
    actor = Recurrent()
    seen = 0
    for fragment in mode(Count, actor, 4, sticky=sticky):
        _, _, info = actor(*fragment.inputs(), hx=fragment.hx)
        error = (info["logits"] - fragment.actor["logits"]).abs()[~fragment.frozen]
        assert error.max() < 1e-5
        value = actor.value(
            fragment.state.obs[-1:],
            fragment.state.act[-1:],
            fragment.state.rew[-1:],
            fragment.state.fin[-1:],
            hx=actor(*fragment.inputs(), hx=fragment.hx)[1],
        )
        going = ~fragment.state.fin[-1]
        assert (value - fragment.bootstrap)[0, going].abs().sum() < 1e-4
        seen += int(fragment.hx.abs().sum() > 0)
    assert seen >= 2


def test_sticky_lanes_wait_for_the_next_fragment(mode: Callable[..., list[Fragment]]) -> None:
    # Episodes of 7 in fragments of 5: steps 0 to 4, then 5, 6 and three frozen ones.
    for number, fragment in enumerate(mode(Count, Follower(), 4, sticky=True)):
        obs = fragment.state.obs[:, 0, 0].tolist()
        if number % 2 == 0:
            assert obs == [0, 1, 2, 3, 4, 5]
            assert not fragment.frozen.any()
        else:
            assert obs == [5, 6, 0, 0, 0, 0]
            assert fragment.frozen[:, 0].tolist() == [False, False, True, True, True]
            assert fragment.state.fin[:, 0].tolist() == [False, True, True, True, True]
            assert fragment.state.terminated.equal(fragment.state.fin)
            assert fragment.state.rew[:, 0].tolist() == [51, 62, 0, 0, 0]
            assert fragment.state.stepno[:, 0].tolist() == [5, 6, 0, 0, 0]
            assert fragment.final is not None
            assert fragment.final.t.tolist() == [1] * len(fragment.final.lane)


class _Nester(BaseActorModule):
    """Answers trees with trees, and has a tree for a memory."""

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> Any:
        shape = fin.shape
        if hx is None:
            hx = {"sum": torch.zeros(1, shape[1]), "none": None}
        total = hx["sum"] + obs["place"].sum(-1).sum(0, keepdim=True)
        move = torch.stack((torch.sin(total), torch.cos(total)), -1).expand(*shape, 2)
        pick = (obs["cargo"][0] + 1) % 3
        info = {"value": obs["place"][..., 0], "parts": {"cargo": obs["cargo"], "total": total}}
        return {"move": move, "pick": pick}, {"sum": total, "none": None}, info


def test_nests_of_all_kinds(mode: Callable[..., list[Fragment]]) -> None:
    for fragment in mode(Nested, _Nester(), 2):
        state = fragment.state
        assert state.obs["place"].shape[0] == T + 1
        assert state.obs["cargo"][0].dtype == torch.int64
        assert state.obs["cargo"][1].dtype == torch.int8
        assert state.act["move"].shape == (*state.fin.shape, 2)
        assert torch.equal(state.act["pick"], (state.obs["cargo"][0][:-1] + 1) % 3)
        assert torch.equal(fragment.actor["parts"]["cargo"][1], state.obs["cargo"][1][:-1])
        assert torch.equal(fragment.inputs().act["pick"][1:], state.act["pick"][:-1])
        assert fragment.hx["sum"].shape == (1, state.fin.shape[1])
        assert torch.equal(fragment.env["picked"], state.act["pick"])


def test_a_fragment_can_be_kept(mode: Callable[..., list[Fragment]]) -> None:
    first, second = mode(Count, Follower(), 2)
    assert first.state.obs[0, 0, 0] == 0
    assert second.state.obs[0, 0, 0] == T


def test_training_and_weights_are_those_of_the_moment() -> None:
    torch.manual_seed(0)
    actor = Recurrent().eval()
    options = {"seed": 1, "max_lag": 0, "workers": 2, "ordered": True}
    with multi.rollout(Count, actor, 30, 2, 2, 4, 2, **options) as it:  # type: ignore[arg-type]
        greedy = next(it)
        actor.train()
        with torch.no_grad():
            actor.policy.weight.zero_(), actor.policy.bias.zero_()
        sampled = next(it)
    assert torch.equal(greedy.state.act, greedy.actor["logits"].argmax(-1))
    assert not torch.equal(sampled.state.act, sampled.actor["logits"].argmax(-1))
    assert sampled.actor["logits"].unique().tolist() == pytest.approx([np.log(0.25)])
    assert (greedy.version.tolist(), sampled.version.tolist()) == ([0] * 4, [1] * 4)
    assert it.stats.version == 1
    assert (it.stats.batches, it.stats.steps) == (2, 240)
    assert actor.training


def test_everything_may_be_inference_tensors() -> None:
    """They do not count their changes."""
    with torch.inference_mode():
        actor = Follower()
        with same.rollout([Count(), Count()], actor, 4) as it:
            next(it)
            actor.weight.add_(1)
            fragment = next(it)
    assert fragment.version.tolist() == [1, 1]
    assert fragment.actor["value"][:, 0].tolist() == [8.0, 10.0, 12.0, 0.0]
