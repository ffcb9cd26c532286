"""Pickled rows: whose they are, how large they may be, and what is in them."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continuation import content
from dungeon import Dungeon

from plangym_like.envs.pickled import PickledEnv
from plangym_like.envs.replayed import ReplayedEnv
from plangym_like.errors import (
    StateCapacityError,
    StateFormatError,
    UntrustedStateError,
)
from plangym_like.states import rows as states

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


# Rows and trust


def _resealed(env: PickledEnv, row: np.ndarray) -> np.ndarray:
    env.layout.format.seal(row[None])
    return row


@pytest.mark.parametrize("kind", [PickledEnv, ReplayedEnv])
def test_a_damaged_row_is_refused(kind: Any) -> None:
    env = kind(Dungeon)
    state = env.reset(seed=0).state
    end = 32 + int(state[16:24].view(np.uint64)[0])  # the bytes behind it mean nothing
    random = np.random.default_rng(0)
    for _ in range(50):
        damaged = state.copy()
        damaged[random.integers(32, end)] ^= 1 << int(random.integers(8))
        with pytest.raises(StateFormatError):
            env.set_state(damaged)


@pytest.mark.parametrize("place", [32 + 8, 32 + 24, 32 + 100])
def test_a_row_without_the_tag_of_this_session_is_not_unpickled(place: int) -> None:
    env = PickledEnv(Dungeon)
    row = env.reset(seed=0).state
    row[place] ^= 1
    _resealed(env, row)
    with pytest.raises(UntrustedStateError, match="allow_pickle=True"):
        env.set_state(row)
    with pytest.raises(UntrustedStateError):
        env.step_batch([1, 1], row)


class _Bomb:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_foreign_pickle_does_not_run(tmp_path: Path) -> None:
    env = PickledEnv(Dungeon)
    row = env.reset(seed=0).state
    data = pickle.dumps(_Bomb(tmp_path / "mark"))
    row[32:] = 0
    row[32:40].view(np.uint64)[0] = len(data)
    row[56 : 56 + len(data)] = np.frombuffer(data, np.uint8)
    _resealed(env, row)
    with pytest.raises(UntrustedStateError):
        env.set_state(row)
    assert not (tmp_path / "mark").exists()


def test_rows_of_another_session_need_a_word(tmp_path: Path, monkeypatch: Any) -> None:
    env = PickledEnv(Dungeon)
    state = env.reset(seed=0).state
    future = env.step(2, state)
    env.save_states(tmp_path / "states", [state])
    monkeypatch.setattr(states, "_session_key", b"another session's key of 32 byte")
    rows = env.load_states(tmp_path / "states")
    with pytest.raises(UntrustedStateError):
        env.step(2, rows[0])
    trusting = PickledEnv(Dungeon, allow_pickle=True)
    again = trusting.step(2, rows[0])
    assert content(tuple(again)[1:]) == content(tuple(future)[1:])


class Growing(Dungeon):
    def reset(self, **kwargs: Any) -> Any:
        self.history: list[float] = []
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.history += [float(self.time)] * 50
        return super().step(action)


def test_a_snapshot_that_outgrows_the_row_says_which_option_helps() -> None:
    env = PickledEnv(Growing)
    state = env.reset(seed=0).state
    with pytest.raises(StateCapacityError, match=r"state_capacity=\d+"):
        for _ in range(100):
            state = env.step(1, state).state
    roomy = PickledEnv(Growing, state_capacity=200_000)
    assert roomy.state_nbytes == 200_000 + 32
    state = roomy.reset(seed=0).state
    for _ in range(100):
        state = roomy.step(1, state).state
    with pytest.raises(StateCapacityError, match="200 are reserved"):
        PickledEnv(Growing, state_capacity=200)


def test_the_fields_are_the_attributes_that_are_numbers() -> None:
    env = PickledEnv("CartPole-v1")
    first = env.reset(seed=0)
    batch = env.step_batch([0, 1], first.state)
    fields = env.view_state(batch.states)
    assert np.allclose(fields["state"], batch.obs)
    assert fields["gravity"].tolist() == [9.8, 9.8]
    assert env.view_state(first.state)["state"].shape == (4,)
