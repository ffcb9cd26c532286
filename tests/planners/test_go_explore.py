"""`GoExplore`: what its archive holds, where it leads, and which cells there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from suite import CLIFF

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import (
    DynamicScreenCells,
    GoExplore,
    ObservationCells,
    ScreenCells,
    position_cells,
)
from plangym_like.planners.go_explore import CellArchive
from plangym_like.planners.plan import Spent
from plangym_like.results import BatchInfo


def _numbers(obs: Any, infos: BatchInfo) -> list[Any]:
    return list(np.asarray(obs).tolist())


@pytest.fixture
def cliff() -> Iterator[Any]:
    with plangym_like.make(CLIFF) as env:
        env.reset(seed=0)
        yield env


def test_the_archive_holds_the_shortest_way_to_every_cell(cliff: Any) -> None:
    state = cliff.reset(seed=0).state
    planner = GoExplore(cliff, _numbers, batch=16, steps=10, repeat=0.5)
    plan = planner.plan(state, budget=12_000, seed=0)
    assert plan.score == -13, "the way along the cliff, 13 steps of reward -1"
    assert plan.ended
    assert plan.replay(cliff) == plan.score
    visits = plan.info["cells"]
    # The walkable cells of the 4 x 12 map, without the goal, where the episode ends.
    assert set(visits) == {*range(36), 36}
    for cell, visit in visits.items():
        row, column = divmod(cell, 12)
        # Up from the start at (3, 0), then sideways. A step against the border stays at the
        # start.
        least = max(3 - row + column, 1)
        assert visit.score == -least
        assert visit.frames == least
        assert 0 < visit.found.transitions <= plan.spent.transitions


def test_a_plan_without_a_score_leads_to_the_newest_cell() -> None:
    with plangym_like.make("MountainCar-v0") as env:
        env.reset(seed=0)
        plan = GoExplore(env).plan(budget=500, seed=0)
        assert not plan.ended
        assert len(plan.curve) == 0
        newest = max(plan.info["cells"].values(), key=lambda visit: visit.found.transitions)
        assert plan.score == plan.replay(env) == newest.score < 0
        assert len(plan) == newest.frames
        nothing = GoExplore(env, lambda obs, infos: [None] * len(infos)).plan(budget=64, seed=0)
        assert len(nothing) == 1


def test_cells_that_were_entered_often_are_drawn_less() -> None:
    archive = CellArchive(np.zeros(8, np.uint8), np.ones(2, bool))
    rng = np.random.default_rng(0)
    names = [f"cell {index}" for index in range(4)]
    walkers = archive.choose(4, rng)
    assert len(archive) == 0
    walkers.nodes[:] = range(1, 5)
    archive.add(walkers, names, Spent())
    assert list(archive.visits()) == names
    one = walkers.take(np.array([0]))
    for _ in range(3):
        archive.add(one, names[:1], Spent())
    chosen = archive.choose(60_000, rng).nodes
    counts = {name: int((chosen == row).sum()) for row, name in enumerate(["start", *names])}
    # Four explorations have begun at the start, and three later ones came to the first cell.
    weights = dict.fromkeys(names, 1.0) | {"start": 1 / np.sqrt(5), "cell 0": 0.5}
    for name, count in counts.items():
        share = weights[name] / sum(weights.values())
        assert abs(count / 60_000 - share) < 5 * np.sqrt(share * (1 - share) / 60_000)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (CLIFF, {"cell_of": ScreenCells()}, "ScreenCells needs screens"),
        ("HalfCheetah-v5", {}, r"no cells for these observations; give it your own cell_of"),
    ],
)
def test_options_that_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with plangym_like.make(name) as env, pytest.raises(InputError, match=words):
        GoExplore(env, **options)


def test_cells_that_do_not_fit_the_batch_are_refused(cliff: Any) -> None:
    with pytest.raises(InputError, match="cell_of returned 1 cells for 64 rows"):
        GoExplore(cliff, lambda obs, infos: [0]).plan(budget=1000)
    with pytest.raises(InputError, match="cell_of must return a list of hashable objects"):
        GoExplore(cliff, lambda obs, infos: [[cell] for cell in obs]).plan(budget=1000)
    with pytest.raises(InputError, match="cell_of must return a list of hashable objects"):
        GoExplore(cliff, lambda obs, infos: 0).plan(budget=1000)  # type: ignore[arg-type,return-value]


def test_positions_in_montezumas_revenge() -> None:
    for obs_type in ("ram", "grayscale"):
        with plangym_like.make("ALE/MontezumaRevenge-v5", obs_type=obs_type) as env:
            state = env.reset(seed=0).state
            step = env.step_batch([0, 3, 4], state, dt=8)
            cells = position_cells(step.obs, step.infos)
            assert [cell[0] for cell in cells] == [1, 1, 1]
            assert [cell[1] for cell in cells] == (step.infos["x"] // 8).tolist()
            assert [cell[2] for cell in cells] == (step.infos["y"] // 16).tolist()
            assert {cell[3] for cell in cells} == {0}, "nothing is carried at the start"
            plan = GoExplore(env, position_cells, batch=8).plan(state, budget=400, seed=0)
            assert len(plan.info["cells"]) > 5
            assert len(plan) > 0


def test_screens_of_a_colour_and_grey_ones_are_cells() -> None:
    no_infos = BatchInfo(2, {})
    grey = np.zeros((2, 20, 22), np.uint8)
    grey[1, :10] = 255
    cells = ScreenCells(2, 2, 4)(grey, no_infos)
    assert [list(cell) for cell in cells] == [[0, 0, 0, 0], [3, 3, 0, 0]]
    assert ScreenCells(2, 2, 4)(np.repeat(grey[..., None], 3, axis=3), no_infos) == cells
    with pytest.raises(InputError, match=r"needs screens of uint8, got observations \(4,\)"):
        ScreenCells()(np.zeros((2, 4)), no_infos)


def test_a_search_changes_its_representation_and_keeps_the_best_visits() -> None:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="grayscale") as env:
        start = env.reset(seed=0).state
        state = env.step_batch([0], start, dt=80).states[0]  # after the music
        cells = DynamicScreenCells(every=100, trials=8, sample=30)
        planner = GoExplore(env, cells, batch=8, steps=20, dt=2)
        plans = [planner.plan(state, budget=250, seed=0) for _ in range(2)]
        assert list(plans[0].info["cells"]) == list(plans[1].info["cells"])
        assert (cells.height, cells.width, cells.shades) == (8, 11, 8), "a search changes a copy"
        assert {len(cell) for cell in plans[0].info["cells"]} != {88}
        assert plans[0].replay(env) == plans[0].score


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("largest", ["infinity", "finite"])
def test_observations_are_divided_into_bins(dtype: Any, largest: str) -> None:
    no_infos = BatchInfo(2, {})
    end = np.inf if largest == "infinity" else np.finfo(dtype).max
    box = gymnasium.spaces.Box(np.array([0, -end], dtype), np.array([1, end], dtype), dtype=dtype)
    cells = ObservationCells(box, bins=4)
    assert cells(np.array([[0.3, 0.0], [1.0, -1e9]]), no_infos) == [(1, 2), (3, 0)]
    discrete = ObservationCells(gymnasium.spaces.Discrete(9))
    assert discrete(np.array([4, 7]), no_infos) == [(4,), (7,)]
    with pytest.raises(InputError, match="no cells for these observations"):
        ObservationCells(gymnasium.spaces.Dict({}))
