"""How states are saved: as a trial shows, or as the caller chooses."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dungeon import ClassCounter, Dungeon, Shy
from gymnasium.wrappers import ClipReward

import plangym_like
from plangym_like.envs import family_env
from plangym_like.errors import InputError, SnapshotError


class Ticking(Shy):
    """Has something in its infos that is never the same again."""

    ticks = 0

    def step(self, action: Any) -> Any:
        Ticking.ticks += 1
        *rest, info = super().step(action)
        return *rest, {**info, "ticks": Ticking.ticks}


@pytest.mark.parametrize("name", ["CartPole-v1", Dungeon])
@pytest.mark.parametrize("snapshot", ["pickle", "replay"])
def test_the_way_may_be_asked_for(name: Any, snapshot: str) -> None:
    env = plangym_like.make(name, snapshot=snapshot)
    plain = plangym_like.make(name)
    assert env.snapshot == snapshot
    state, start = env.reset(seed=0).state, plain.reset(seed=0).state
    one, other = env.step_batch([0, 1, 1], state), plain.step_batch([0, 1, 1], start)
    assert np.array_equal(one.obs, other.obs) and np.array_equal(one.rewards, other.rewards)


def test_what_cannot_be_saved_is_refused_with_every_reason() -> None:
    with pytest.raises(SnapshotError) as caught:
        plangym_like.make(ClassCounter)
    assert "ClassCounter cannot be saved exactly" in str(caught.value)
    for way in ("native", "pickle", "replay"):
        assert f"- by {way}: " in str(caught.value)


def test_an_approximation_says_so() -> None:
    env = plangym_like.make(Ticking)
    assert env.exactness == "approximate" and "ticks" in env.exactness_note
    assert env.snapshot_note.endswith("no method is exact")


def test_an_approximation_is_closed_if_the_next_method_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def make(way: str, *args: Any) -> Any:
        if way == "replay":
            raise KeyboardInterrupt
        note = {"exactness": "approximate", "exactness_note": "it ticks"}
        return SimpleNamespace(**note, close=lambda: closed.append(way))

    monkeypatch.setattr(family_env, "_make", make)
    with pytest.raises(KeyboardInterrupt):
        family_env.auto_simulator(Ticking)
    assert closed == ["native", "pickle"]


@pytest.mark.parametrize(
    "name, snapshot, reason",
    [
        ("CartPole-v1", "copy", "snapshot must be 'auto', 'native', 'pickle' or 'replay'"),
        ("LunarLander-v3", "native", "LunarLander-v3 has no snapshot='native': Box2D gives no"),
    ],
)
def test_a_way_that_there_is_not_is_an_error(name: Any, snapshot: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plangym_like.make(name, snapshot=snapshot)


def test_a_way_is_not_taken_where_it_cannot_be_exact() -> None:
    with pytest.raises(SnapshotError, match="Dungeon has no save_state and no load_state"):
        plangym_like.make(Dungeon, snapshot="native")


@pytest.mark.parametrize("options", [{"delay_setup": True}, {"snapshot": "pickle"}])
def test_a_list_of_wrappers_may_be_changed_afterwards(options: dict[str, Any]) -> None:
    wrappers: list[Any] = [(ClipReward, {"max_reward": 0.25})]
    with plangym_like.make("CartPole-v1", wrappers=wrappers, **options) as env:
        wrappers.append((ClipReward, {"max_reward": 0.125}))
        state = env.reset(seed=0).state
        assert env.step(0, state).reward == 0.25
        with env.clone() as clone:
            assert clone.step_batch([0], state).rewards[0] == 0.25
