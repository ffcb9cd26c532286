"""Which family answers to which id, and families of one's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from usual import first_of

import plangym_like
from plangym_like import ClassicControlEnv, registry
from plangym_like.errors import InputError


class Heavy(ClassicControlEnv):
    """A family of CartPoles whose pole has a mass of its own."""

    def __init__(self, name: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_heavy_cart_pole, *args, **kwargs)


def _heavy_cart_pole(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs)
    env.unwrapped.masspole = 0.5  # type: ignore[attr-defined]
    return env


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    kept = list(registry.user_families)
    yield
    registry.user_families[:] = kept


@pytest.mark.parametrize("n_workers", [None, 2])
def test_a_family_answers_to_ids_with_its_prefix(n_workers: int | None) -> None:
    plangym_like.register("heavy/", Heavy)
    with plangym_like.make("heavy/CartPole", n_workers=n_workers) as env:
        state = env.reset(seed=0).state
        found = env.step_batch(np.arange(200) % 2, state)
    plain = plangym_like.make("CartPole-v1")
    start = plain.make_state(plain.reset(seed=0).state, x=env_x(state))
    expected = plain.step_batch(np.arange(200) % 2, start)
    assert (found.obs != expected.obs).any()
    hand: Any = _heavy_cart_pole()
    hand.reset(seed=0)
    assert found.obs[0].tolist() == hand.step(0)[0].tolist()


def env_x(state: np.ndarray) -> np.ndarray:
    return state[32:64].view(np.float64)


def test_a_predicate_takes_ids_and_callables_before_the_packages_own_families() -> None:
    asked = []

    def takes(name: Any) -> bool:
        asked.append(name)
        return name in ("CartPole-v1", PendulumEnv)

    plangym_like.register(lambda name: name == "CartPole-v1", ClassicControlEnv)
    plangym_like.register(takes, Heavy)  # the last one is asked first
    for name in ("CartPole-v1", PendulumEnv):
        assert isinstance(plangym_like.make(name, delay_setup=True), Heavy)
    assert not isinstance(plangym_like.make("Acrobot-v1", delay_setup=True), Heavy)
    assert asked == ["CartPole-v1", PendulumEnv, "Acrobot-v1"]


@pytest.mark.parametrize("arguments", [("", Heavy), (3, Heavy), ("mine/", "Heavy")])
def test_what_is_not_a_family_is_refused(arguments: Any) -> None:
    with pytest.raises(InputError):
        plangym_like.register(*arguments)
    with pytest.raises(gymnasium.error.Error):
        plangym_like.make("mine/x")


@pytest.mark.parametrize(
    "name, family",
    [
        ("CartPole-v1", "ClassicControlEnv"),
        ("FrozenLake-v1", "ToyTextEnv"),
        ("LunarLander-v3", "Box2DEnv"),
        ("GymV21Environment-v0", "AnyEnv"),
        (PendulumEnv, "AnyEnv"),
    ],
)
def test_each_id_has_its_family(name: Any, family: str) -> None:
    assert registry.family_of(name).__name__ == family


@pytest.mark.parametrize("n_workers", [None, 2])
@pytest.mark.parametrize("made", first_of(["env", None]))
def test_a_family_that_returns_no_plan_env(made: Any, n_workers: int | None) -> None:
    def family(name: str, **kwargs: Any) -> Any:
        return made and gymnasium.make("CartPole-v1")

    plangym_like.register("none/", family)
    with pytest.raises(InputError, match="not a PlanEnv or a Simulator"):
        plangym_like.make("none/x", n_workers=n_workers)


def test_a_family_of_ones_own_chooses_how_states_are_saved() -> None:
    plangym_like.register("heavy/", Heavy)
    with pytest.raises(InputError, match="leave out snapshot='replay'"):
        plangym_like.make("heavy/CartPole", snapshot="replay")
    assert plangym_like.make("heavy/CartPole", snapshot="native").snapshot == "native"


class Rich(PendulumEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 7.0, *rest


@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_workers_know_ids_as_they_are_registered_here(gymnasium_registry: None) -> None:
    gymnasium.register("Rich-v0", Rich)
    gymnasium.register("Named-v0", f"{__name__}:Rich")
    gymnasium.register("Pendulum-v1", Rich)
    gymnasium.register("Local-v0", type("Local", (Rich,), {}))  # pickled by value
    plangym_like.register("mine/", lambda name, **kw: plangym_like.AnyEnv(name[5:], **kw))
    for source in ("mine/Rich-v0", "Named-v0", "Pendulum-v1", lambda: gymnasium.make("Local-v0")):
        with plangym_like.make(source, snapshot="auto", isolate=True) as env:
            batch = env.step_batch(np.zeros((4, 1), np.float32), env.reset(seed=0).state)
            assert batch.rewards.tolist() == [7.0] * 4


@pytest.mark.parametrize("name", ["cartpole-swingup", "walker-walk"])
def test_the_extra_of_a_task_of_dm_control_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dm_control", "dm_control.suite"):
        monkeypatch.setitem(sys.modules, module, None)
    for make in (plangym_like.make, plangym_like.make_vec):
        with pytest.raises(gymnasium.error.NameNotFound) as caught:
            make(name)
        said = str(caught.value)
        assert "If it is an id of dm-control, install it: pip install" in said
    with pytest.raises(gymnasium.error.NameNotFound) as caught:
        plangym_like.make("CartPol-v1")
    assert "dm-control" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [("cartpole-balanse", "cartpole-balance"), ("dm_control/walker-wallk-v0", "walker-walk-v0")],
)
def test_near_matches_include_the_tasks_of_dm_control(name: str, near: str) -> None:
    pytest.importorskip("dm_control")
    with pytest.raises(gymnasium.error.Error, match=f"Near matches: .*{near}"):
        plangym_like.make(name)
