"""What would spoil a fragment without a word: ends that vanish, interrupts, infos that change."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counting import Count, Follower, Interrupted, Recurrent
from making import same_lanes, two_groups, two_groups_here
from usual import first_of

from plangym_like.batchers.rollout import BaseActorModule, Fragment, evaluate, same
from plangym_like.errors import ClosedError, InputError

Make = Callable[..., Any]
T = 5


# All of them use one collector.
COLLECTORS = [two_groups_here, two_groups, same_lanes]
EVERYWHERE = pytest.mark.parametrize("make", first_of(COLLECTORS))
# What a worker writes into shared memory, or sends.
THERE_TOO = pytest.mark.parametrize("make", first_of(COLLECTORS, 2))
HERE = pytest.mark.parametrize("make", first_of([same_lanes, two_groups_here]))


# Exceptions that mean something to a loop or to a program


class Raises(Count):
    def __init__(self, error: BaseException, at: str) -> None:
        super().__init__()
        self.error, self.at = error, at

    def step(self, action: Any) -> Any:
        if self.at == "step" and self.index == 3:
            raise self.error
        return super().step(action)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.at == "reset" and self.index:
            raise self.error
        return super().reset(seed=seed, options=options)


class Exhausted(Follower):
    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        if obs[0, 0, 0] == 3:
            raise StopIteration
        return super().forward(obs, *rest, hx=hx)


@EVERYWHERE
@pytest.mark.parametrize("at", ["step", "reset", "actor", "factory"])
def test_a_loop_over_fragments_never_ends_by_itself(make: Make, at: str) -> None:
    def factory() -> Any:
        return next(iter(())) if at == "factory" else Raises(StopIteration(), at)

    if at == "factory" and make is same_lanes:
        pytest.skip("environments are made by the caller")
    it = make(factory, Exhausted() if at == "actor" else Follower(), infos=False)
    with it, pytest.raises(RuntimeError, match="StopIteration"):
        for _ in islice(it, 9):
            pass
    with pytest.raises(ClosedError):
        next(it)


@pytest.mark.parametrize("error", first_of([SystemExit(0), KeyboardInterrupt(), GeneratorExit()]))
def test_a_worker_cannot_end_the_program(error: BaseException) -> None:
    it = two_groups(lambda: Raises(error, "step"), Follower(), infos=False)
    with it, pytest.raises(RuntimeError, match=type(error).__name__):
        for _ in islice(it, 9):
            pass


# Ctrl-C


def _check(fragment: Fragment) -> None:
    """Check that every step of a `Count` follows from the one before it."""
    state = fragment.state
    index = state.obs[..., 0].to(torch.int64)
    assert torch.equal(state.stepno, index[:-1])
    assert torch.equal(state.rew, (10 * index[:-1] + state.act).to(torch.float32))
    assert torch.equal(index[1:], torch.where(state.fin, 0, index[:-1] + 1))
    assert torch.equal(fragment.bootstrap, index[-1:].to(torch.float32))
    assert (fragment.before.fin[0] == (state.stepno[0] == 0)).all()


@HERE
@pytest.mark.parametrize("armed", [("step", 3), ("stepped", 4), ("stepped", 7), ("reset", 7)])
def test_after_a_ctrl_c_every_row_is_true(make: Make, armed: tuple[str, int]) -> None:
    fragments: list[Fragment] = []
    interrupts = 0
    with make(Interrupted, Follower(), seed=0) as it:
        while len(fragments) < 12:
            if len(fragments) in (1, 5) and interrupts <= len(fragments) // 5:
                Interrupted.armed[:] = [armed]
            try:
                fragments.append(next(it))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 2
    for fragment in fragments:
        _check(fragment)


# Infos


class Scores(Count):
    """Says numbers that change their kind; `says` is called with the number of the step."""

    def __init__(self, says: Callable[[int], dict[str, Any]], first: dict[str, Any]) -> None:
        super().__init__(end=40)
        self.says, self.first = says, first
        self.taken = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], self.first

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return *result, self.says(self.index)


def _infos(make: Make, says: Any, first: Any, count: int = 3) -> list[Any]:
    with make(lambda: Scores(says, first), Follower(), seed=0) as it:
        return [fragment.env for fragment in islice(it, count)]


@THERE_TOO
def test_a_number_that_becomes_finer(make: Make) -> None:
    """0.3 is not 0, wherever whole numbers came first."""

    def says(index: int) -> dict[str, Any]:
        return {"score": index * 0.1 if index > 7 else 0, "big": 2**40 if index == 9 else 1}

    first, second, third = _infos(make, says, {"score": 0, "big": np.int8(0)})
    assert first["score"].dtype == torch.int64
    assert second["score"].dtype == torch.float64
    assert second["score"][:, -1].tolist() == [0, 0, 8 * 0.1, 9 * 0.1, 10 * 0.1]
    assert second["big"][:, 0].tolist() == [1, 1, 1, 2**40, 1]
    assert third["score"].dtype == torch.float64
    assert third["score"][:, 0].tolist() == [index * 0.1 for index in range(11, 16)]


class Changes(BaseActorModule):
    """Changes one of its inputs in place, in one of its methods."""

    def __init__(self, place: int, method: str) -> None:
        super().__init__()
        self.place, self.method = place, method

    def forward(self, *inputs: Any, hx: Any = None) -> Any:
        self.change("forward", inputs)
        shape = inputs[0].shape[:2]
        return torch.zeros(shape, dtype=torch.int64), (), {"value": torch.zeros(shape)}

    def value(self, *inputs: Any, hx: Any = None) -> Any:
        self.change("value", inputs)
        return torch.zeros(inputs[0].shape[:2])

    def change(self, method: str, inputs: Any) -> None:
        if method == self.method:
            inputs[self.place].mul_(2)


@HERE
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("method", ["forward", "value"])
def test_an_actor_that_changes_its_inputs(make: Make, place: int, method: str) -> None:
    with (
        pytest.raises(InputError, match="changed its inputs in place"),
        make(Count, Changes(place, method), seed=0) as it,
    ):
        next(it)


@EVERYWHERE
def test_a_key_that_changes_its_kind(make: Make) -> None:
    """What is no number counts as missing, as it does from the beginning."""

    def says(index: int) -> dict[str, Any]:
        kinds = [None, "3", [1, "x"], object, {"of": "it"}, 5]
        return {"winner": kinds[index % 6], "nested": {"lead": None if index % 2 else index}}

    envs = _infos(make, says, {"winner": 0, "nested": {"lead": 0}})
    found = [env["winner"][:, 0].tolist() if "winner" in env else [0] * T for env in envs]
    assert [*found[0], *found[1], *found[2]] == [
        5 if index % 6 == 5 else 0 for index in range(1, 16)
    ]
    leads = torch.cat([env["nested"]["lead"][:, 0] for env in envs]).tolist()
    assert leads == [0 if index % 2 else index for index in range(1, 16)]


@THERE_TOO
def test_a_key_that_comes_late(make: Make) -> None:
    def says(index: int) -> dict[str, Any]:
        late = {"at": index, "where": np.array([index, 0.5])}
        return {"here": index, **({"late": late} if index == 7 else {})}

    first, second, third = _infos(make, says, {})
    assert "late" not in first
    assert second["late"]["at"][:, 0].tolist() == [0, 7, 0, 0, 0]
    assert second["late"]["where"][1, -1].tolist() == [7, 0.5]
    assert "late" not in third
    assert third["here"][:, 0].tolist() == list(range(11, 16))


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (np.zeros(3), np.zeros(2), r"info 'x' had the shape \(3,\).*\(2,\) now"),
        (1, {"y": 2}, "'x.*' is a number in one step and a dict in another"),
    ],
)
def test_an_info_of_another_form_is_an_error(first: Any, later: Any, message: str) -> None:
    def says(index: int) -> dict[str, Any]:
        return {"x": first if index < 4 else later}

    with pytest.raises(InputError, match=message):
        _infos(same_lanes, says, {})


# What actors answer


class Half(Follower):
    """Answers in a dtype that NumPy does not have."""

    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        actions, _, info = super().forward(obs, *rest, hx=hx)
        shape = (2, obs.shape[1], 3)
        hx = torch.zeros(shape, dtype=torch.bfloat16) if hx is None else hx + 1
        return actions, hx, {"value": info["value"].bfloat16(), "seen": obs.bfloat16()}


@THERE_TOO
def test_bfloat16_infos_and_states(make: Make) -> None:
    with make(lambda: Count(limit=6), Half(), seed=0) as it:
        fragments = list(islice(it, 3))
    for fragment in fragments:
        assert fragment.actor["seen"].dtype == torch.bfloat16
        assert torch.equal(fragment.actor["seen"], fragment.state.obs[:-1].bfloat16())
        assert fragment.bootstrap.dtype == fragment.hx.dtype == torch.bfloat16
        assert fragment.final is not None
        assert fragment.final.value.dtype == fragment.final.hx.dtype == torch.bfloat16


def _proper(zeros: Any, **infos: Any) -> Any:
    """Return actions, states and infos."""
    info = {"value": zeros, "n": zeros.long(), "x": zeros, **infos}
    return zeros.long(), zeros[..., None], info


class Answers(BaseActorModule):
    """Gives proper answers until it has seen three steps, and then those of `later`."""

    def __init__(self, later: Callable[[Any], Any]) -> None:
        super().__init__()
        self.later = later

    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        answer = _proper if obs[0, 0, 0] < 3 else self.later
        return answer(torch.zeros(1, obs.shape[1]))


LATER: dict[str, Callable[[Any], Any]] = {
    "fractions as actions": lambda z: (z + 0.7, *_proper(z)[1:]),
    "one action for all": lambda z: (z.long()[:, :1], *_proper(z)[1:]),
    "finer infos": lambda z: _proper(z, n=z + 0.3),
    "wider infos": lambda z: _proper(z, x=z.double()),
    "more infos": lambda z: _proper(z, y=z),
    "fewer infos": lambda z: (z.long(), z[..., None], {"value": z}),
    "one value for all": lambda z: _proper(z, value=z[:, :1]),
    "another state": lambda z: (z.long(), z[..., None, None], _proper(z)[2]),
    "no state": lambda z: (z.long(), (), _proper(z)[2]),
}


@pytest.mark.parametrize("what", list(LATER))
def test_answers_keep_their_form(what: str) -> None:
    it = same.rollout([Count(), Count()], Answers(LATER[what]), 4, seed=0)
    with it, pytest.raises(InputError, match="actor's"):
        next(it), next(it)


class Memory(BaseActorModule):
    """Has a recurrent state of a shape of its own."""

    def __init__(self, shape: Callable[[int], tuple[int, ...]]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        hx = torch.zeros(self.shape(obs.shape[1])) if hx is None else hx
        return obs[..., 0].long() % 4, hx, {}


@EVERYWHERE
@pytest.mark.parametrize("shape", [lambda n: (n, 2, 8), lambda n: (n, 8), lambda n: (n,)])
def test_lanes_are_the_second_dimension_of_a_recurrent_state(make: Make, shape: Any) -> None:
    with make(Count, Memory(shape)) as it, pytest.raises(InputError, match="second dimension"):
        next(it)


# Seeds


def test_seeds_of_evaluations() -> None:
    def envs(vectorise: bool) -> list[Any]:
        found: list[Any] = [gymnasium.make("CartPole-v1") for _ in range(2)]
        return (
            found if vectorise else [gymnasium.wrappers.RecordEpisodeStatistics(e) for e in found]
        )

    actor = Recurrent(4, 2).eval()
    for vectorise in (True, False):
        expected = evaluate(envs(vectorise), actor, seeds=[5, 6])
        assert np.array_equal(evaluate(envs(vectorise), actor, seeds=np.array([5, 6])), expected)  # type: ignore[arg-type]
        for wrong in ([1], [1, 2, 3], [], [1.5, 2], [-1, 2]):
            with pytest.raises(InputError, match="seeds"):
                evaluate(envs(vectorise), actor, seeds=wrong)  # type: ignore[arg-type]
