"""Rows and files that no environment has made: refused, and nothing else happens."""

from __future__ import annotations

import os
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_envs import Nested

import plangym_like
from plangym_like.errors import StateError, UntrustedStateError
from plangym_like.states.rows import HEADER_NBYTES

CANARY = "canary"
ENVS: dict[str, tuple[Any, dict[str, Any]]] = {
    "game": ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1}),
    "classic": ("CartPole-v1", {}),
    "toy text": ("FrozenLake-v1", {}),
    "pickled": (Nested, {}),
}


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


@pytest.fixture(scope="module", params=list(ENVS))
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    name, kwargs = ENVS[request.param]
    if request.param == "game":
        pytest.importorskip("ale_py")
    with plangym_like.make(name, **kwargs) as env:
        yield env


@pytest.fixture(scope="module")
def rows(env: Any) -> np.ndarray:
    """Forty states that play has reached."""
    states = np.stack([env.reset(seed=0).state] * 40)
    env.action_space.seed(0)
    for _ in range(4):
        states = env.step_batch([env.action_space.sample() for _ in states], states).states
    return states


@pytest.fixture(scope="module")
def strangers(env: Any) -> list[np.ndarray]:
    """Rows of other games, and of another version of this one."""
    made = []
    for name, kwargs in ENVS.values():
        if name != env._name:
            with plangym_like.make(name, **kwargs) as other:
                made.append(other.reset(seed=0).state)
    own = env.reset(seed=0).state.copy()
    own[3] = ord("9")  # a later format
    return [*made, own]


def mutations(
    rng: np.random.Generator, env: Any, rows: np.ndarray, strangers: list[np.ndarray], canary: Path
) -> Iterator[Any]:
    """Yield rows that are wrong in ever new ways."""
    width, checked = rows.shape[1], env.layout.format.checksum
    bomb = np.frombuffer(pickle.dumps(Bomb(canary)), np.uint8)
    while True:
        row = rows[rng.integers(len(rows))].copy()
        yield row[: rng.integers(1, width)]  # of no bytes, it would be a batch of no rows
        yield np.append(row, rng.integers(0, 256, rng.integers(1, 9)).astype(np.uint8))
        flipped = row.copy()
        flipped[rng.integers(HEADER_NBYTES)] ^= 1 << rng.integers(8)
        yield flipped
        length_bomb = row.copy()
        length_bomb[16:24].view(np.uint64)[0] = rng.choice(
            np.array([width, width + 1, 1 << 40, 1 << 63, (1 << 64) - 1], np.uint64)
        )
        yield length_bomb
        yield strangers[rng.integers(len(strangers))]
        yield rng.integers(0, 256, width).astype(np.uint8)
        yield np.frombuffer(bomb.tobytes().ljust(width, b"\0")[:width], np.uint8)
        if checked:
            for count in (1, 4, 28):
                damaged = row.copy()
                used = int(row[16:24].view(np.uint64)[0])
                places = HEADER_NBYTES + rng.integers(0, used, count)
                damaged[np.unique(places)] ^= np.uint8(1 << rng.integers(8))
                yield damaged
            hidden = row.copy()
            hidden[HEADER_NBYTES : HEADER_NBYTES + len(bomb)] = bomb[: width - HEADER_NBYTES]
            yield hidden


def peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.full)])
def test_rows_that_are_none(
    env: Any, rows: np.ndarray, strangers: list[np.ndarray], tmp_path: Path, count: int
) -> None:
    canary = tmp_path / CANARY
    rng = np.random.default_rng(count)
    actions = [env.action_space.sample()]
    env.set_state(rows[0])
    before, stands = peak_nbytes(), env.get_state().tobytes()
    uses: list[Callable[[Any], object]] = [
        env.set_state,
        lambda row: env.step_batch(actions, [row]),
        lambda row: env.rollout_batch([actions], row),
        lambda row: env.step(actions[0], row),
        env.view_state,
        lambda row: env.save_states(tmp_path / "never", row),
    ]
    for number, row in zip(
        range(count), mutations(rng, env, rows, strangers, canary), strict=False
    ):
        with pytest.raises(StateError):
            uses[number % len(uses)](row)
    assert env.get_state().tobytes() == stands
    assert peak_nbytes() - before < 64 << 20
    assert not canary.exists() and not (tmp_path / "never").exists()


def test_a_pickle_with_a_repaired_checksum_is_not_trusted(tmp_path: Path) -> None:
    canary = tmp_path / CANARY
    bomb = np.frombuffer(pickle.dumps(Bomb(canary)), np.uint8)
    with (
        plangym_like.make(Nested) as env,
        plangym_like.make(Nested, n_workers=2, isolate=True) as isolated,
    ):
        row = env.reset(seed=0).state
        payload = row[HEADER_NBYTES:]
        payload[:8].view(np.uint64)[0] = len(bomb)
        payload[24 : 24 + len(bomb)] = bomb
        env.layout.format.seal(row[None])
        path = tmp_path / "states"
        env.save_states(path, row)
        action = env.action_space.sample()
        for each in (env, isolated):
            (loaded,) = each.load_states(path)
            for use in (
                each.set_state,
                each.view_state,
                lambda row, each=each: each.step(action, row),
                lambda row, each=each: each.step_batch([action], row),
            ):
                with pytest.raises(UntrustedStateError, match="allow_pickle"):
                    use(loaded)
    assert not canary.exists()
