"""Random games, played straight through, and the same positions stepped from their rows."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import plangym_like


class Played(NamedTuple):
    """Moves of random games: the rows before and after, and the content of each step."""

    rows: np.ndarray
    actions: np.ndarray
    next_rows: np.ndarray
    contents: list[tuple[Any, ...]]


def content(step: Any, index: Any = ...) -> tuple[Any, ...]:
    """Return what a step gave, or row `index` of a batch, as bytes and numbers."""
    if index is ...:
        obs, reward, over, info = step.obs, step.reward, step.terminated, step.info
        mask, player, rewards = (info[key] for key in ("action_mask", "to_play", "rewards"))
    else:
        obs, reward, over = step.obs[index], step.rewards[index], step.terminateds[index]
        mask, player, rewards = (
            step.infos[key][index] for key in ("action_mask", "to_play", "rewards")
        )
    return (
        np.asarray(obs).tobytes(),
        float(reward),
        bool(over),
        mask.tobytes(),
        int(player),
        rewards.tobytes(),
    )


def play(env: Any, straight: Any, count: int, seed: int = 0) -> Played:
    """Play `count` random moves in `env` and in `straight`, and expect the same from both.

    ``straight.begin(seed)`` and ``straight.move(action)`` return ``(obs, mask, player)`` and
    ``(obs, mask, player, rewards, over)``. Episodes are reset with the seeds from `seed` on.
    """
    random = np.random.default_rng(seed)
    rows, actions, next_rows, contents = [], [], [], []
    over = True
    while len(rows) < count:
        if over:
            seed += 1
            state, obs, info = env.reset(seed=seed)
            expected = straight.begin(seed)
            found = obs.tobytes(), info["action_mask"].tobytes(), info["to_play"]
            assert found == (expected[0].tobytes(), expected[1].tobytes(), expected[2])
            over, mask, player = False, expected[1], expected[2]
        action = random.choice(np.flatnonzero(mask))
        step = env.step(int(action))
        obs, mask, following, rewards, over = straight.move(int(action))
        earned = np.asarray(rewards, np.float64)
        expected = obs.tobytes(), earned[player], over, mask.tobytes(), following, earned.tobytes()
        player = following
        rows.append(state)
        actions.append(action)
        contents.append(content(step))
        assert contents[-1] == expected, f"after {len(rows)} moves"
        state = env.get_state()
        next_rows.append(state)
    return Played(np.stack(rows), np.array(actions), np.stack(next_rows), contents)


def assert_same_batch(env: Any, played: Played, order: np.ndarray) -> None:
    """Step the rows of `played`, in another order, in one batch of `env`: the same bytes."""
    batch = env.step_batch(played.actions[order], played.rows[order])
    assert (batch.states == played.next_rows[order]).all()
    assert not batch.truncateds.any()
    for index, number in enumerate(order):
        assert content(batch, index) == played.contents[number]


def assert_same_steps(env: Any, played: Played, order: np.ndarray) -> None:
    """Step the rows of `played` one by one: the same bytes."""
    for number in order:
        step = env.step(int(played.actions[number]), played.rows[number])
        assert content(step) == played.contents[number]
        assert step.state.tobytes() == played.next_rows[number].tobytes()


class _Allocated(ctypes.Structure):
    """What the C library says about its memory, as in ``malloc.h``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
    ] + [(name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")]


COUNTS_MEMORY = hasattr(ctypes.CDLL(None), "mallinfo2")


def memory_of_kept(name: str, options: dict[str, Any], count: int = 300) -> tuple[int, int]:
    """Return how many bytes about `count` kept positions need, and how many are counted.

    This is measured in a process in which Python's objects are allocated by the C library, too.
    """
    code = f"import played_games; print(*played_games._measure({name!r}, {options!r}, {count}))"
    folder = str(Path(__file__).parent)
    path = os.pathsep.join([folder, str(Path(plangym_like.__file__).parents[1])])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        check=True,
    )
    needed, counted = map(int, ran.stdout.split())
    return needed, counted


def _measure(name: str, options: dict[str, Any], count: int) -> tuple[int, int]:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Allocated

    def allocated() -> int:
        gc.collect()
        found = library.mallinfo2()
        return int(found.uordblks + found.hblkhd)

    random = np.random.default_rng(0)
    with plangym_like.make(name, autoreset=False, state_capacity=1 << 14, **options) as env:
        positions, over, step = env.simulator.base.positions, True, None
        for seed in range(count):
            if over:
                step = env.reset(seed=seed)
            while len(positions._kept) < count:
                step = env.step(int(random.choice(np.flatnonzero(step.info["action_mask"]))))
                if over := step.terminated:
                    break
        counted, full = positions._nbytes, allocated()
        env.simulator.clear_caches()
        return full - allocated(), counted
