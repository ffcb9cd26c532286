"""Where Montezuma's hero is: room and position as info, in every way of stepping."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import plangym_like

GAME = "ALE/MontezumaRevenge-v5"
# Fetches the key in room 1 and leaves through the left door: a letter is an action, the number
# behind it how often it is held for four frames.
JOURNEY = (
    "A11N8A2Q2A2L4ACO3HA2D2LJ2AN3AQA3NIG2O2P2F7H2PQ5ARB2J5CP3A4RJ2FD3EI3A5HDMA4R2I3P4A3R2A2P2F2RP5B"
    "C2B3EB2Q2C2A6D3K10B4RAEK7M2J2OD3I3PO8BR3N9Q2OF2J12QRA5F2G2R2GMCD6A3QNFH3A10Q5A2KR3K2DA3Q5LA7NL"
    "7EK8AECH3P3EK5AEPA3RQ2DP5BOLM2QK4A2C3ABGK4E2M4A4PR2LHJ3P4L2I2E3"
)


def hero(screen: np.ndarray) -> tuple[float, float]:
    """Return the middle of the hero's red shirt, in pixels from the left and from the top."""
    rows, columns = np.nonzero((screen == (200, 72, 72)).all(axis=-1)[46:])
    return float(columns.mean()), float(rows.mean() + 46)


@pytest.fixture(scope="module")
def journey() -> tuple[list[np.ndarray], list[int], list[Any]]:
    """Return the states and actions of the journey, and what each step gave."""
    states, actions, steps = [], [], []
    with plangym_like.make(GAME, frameskip=1, autoreset=False) as env:
        env.reset(seed=0)
        env.step(0)
        for letter, times in re.findall(r"([A-R])(\d*)", JOURNEY):
            for _ in range(int(times or 1)):
                states.append(env.get_state())
                actions.append(ord(letter) - ord("A"))
                steps.append(env.step(actions[-1], dt=4))
    return states, actions, steps


def test_the_image_shows_the_hero_where_the_info_says(journey):
    for step in journey[2][:40:3]:
        x, y = hero(step.obs)
        assert abs(x - 3 - step.info["x"]) <= 3
        assert abs(318 - y - step.info["y"]) <= 4


def test_the_room_is_left_through_the_door(journey):
    states, _, steps = journey
    rooms = [step.info["room"] for step in steps]
    assert rooms == [1] * (len(rooms) - 1) + [0]
    # Out on the left, in from the right.
    assert steps[-2].info["x"] < 10 and steps[-1].info["x"] > 140
    with plangym_like.make(GAME, frameskip=1) as env:
        assert env.reset(seed=0).info.keys() >= {"room", "x", "y"}
        fields = env.view_state(np.stack(states[1:]))
        for name in ("room", "x", "y"):
            assert fields[name].tolist() == [step.info[name] for step in steps[:-1]]


@pytest.mark.parametrize("options", [{}, {"n_workers": 2}, {"seeds": True}], ids=str)
def test_every_way_of_stepping_says_the_same(journey, options):
    states, actions, steps = (part[::9] + part[-1:] for part in journey)
    seeds = np.arange(len(states)) if options.pop("seeds", False) else None
    with plangym_like.make(GAME, frameskip=1, **options) as env:
        infos = env.step_batch(actions, np.stack(states), dt=4, seeds=seeds).infos
        for name in ("room", "x", "y"):
            assert infos[name].tolist() == [step.info[name] for step in steps]
            assert infos[name].dtype == np.int64


def test_other_games_say_nothing_of_places():
    with plangym_like.make("ALE/MsPacman-v5") as env:
        env.reset(seed=0)
        assert not {"room", "x", "y"} & env.step(0).info.keys()
