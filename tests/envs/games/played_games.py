"""Random games, played straight through, and the same positions stepped from their rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


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


def assert_restores(env: Any, other: Any, straight: Any, count: int) -> None:
    """Play `count` moves in `env`, and step their rows in `other` and again in `env`."""
    played = play(env, straight, count)
    order = np.random.default_rng(1).permutation(count)
    assert_same_batch(other, played, order)  # nothing of these games is kept there
    other.simulator.clear_caches()
    assert_same_steps(other, played, order[: count // 4])
    assert_same_batch(env, played, order)
