"""The searches in examples/, and the notebooks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scripts import EXAMPLES, assert_refused, number, output_of, run
from usual import first_of

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
# Transitions for which each is searched.
GAMES = {"CartPole-v1": "20000", "ALE/MsPacman-v5": "1000", "Pendulum-v1": "20000"}


@pytest.fixture(scope="module", params=first_of(GAMES))
def game(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return the directory where `fmc.py` has just run, and what it printed."""
    directory = tmp_path_factory.mktemp("demo")
    arguments = ("--budget", GAMES[request.param], "--episodes", "2", "--workers", "2")
    return directory, output_of(directory, "fmc.py", request.param, *arguments)


def test_the_search_writes_what_it_says(game: tuple[Path, str]) -> None:
    directory, printed = game
    for name in re.findall(r"^wrote (.+)$", printed, re.MULTILINE):
        assert (directory / name).stat().st_size > 0
    assert {path.name for path in (directory / "demo").iterdir()} == {
        "actions.json",
        "score.png",
        "game.gif",
    }
    found = json.loads((directory / "demo" / "actions.json").read_text())
    assert number("score of the search:", printed) == pytest.approx(found["score"], rel=1e-4)
    assert number("random player:", printed) == pytest.approx(found["random_mean"], rel=1e-4)
    with Image.open(directory / "demo" / "game.gif") as film:
        assert film.n_frames > 1
    assert (directory / "demo" / "game.gif").stat().st_size < 3_000_000
    with Image.open(directory / "demo" / "score.png") as chart:
        assert chart.width > 100


def test_the_search_beats_chance(game: tuple[Path, str]) -> None:
    directory, _ = game
    found = json.loads((directory / "demo" / "actions.json").read_text())
    # Ms. Pac-Man waits for the music to end first, and so short a search gets little further.
    assert found["score"] > (0 if found["id"].startswith("ALE/") else found["random_mean"])


@pytest.mark.parametrize("player", [(), ("--gymnasium",)], ids=["ours", "gymnasium"])
def test_a_replay_arrives_at_the_score(game: tuple[Path, str], player: tuple[str, ...]) -> None:
    directory, _ = game
    found = json.loads((directory / "demo" / "actions.json").read_text())
    printed = output_of(directory, "replay.py", *player)
    assert repr(found["score"]) in printed and "the same" in printed


def test_a_replay_that_differs_says_so(game: tuple[Path, str]) -> None:
    directory, _ = game
    found = json.loads((directory / "demo" / "actions.json").read_text())
    wrong = directory / "wrong.json"
    wrong.write_text(json.dumps({**found, "score": found["score"] + 1}))
    outcome = run(directory, "replay.py", str(wrong))
    assert outcome.returncode == 1 and "DIFFERENT" in outcome.stdout


@pytest.mark.full
def test_uct_keeps_the_pole_up(tmp_path: Path) -> None:
    printed = output_of(tmp_path, "uct.py", "--steps", "80")
    assert number("score of UCT:", printed) == 80
    assert number("random player:", printed) < 60


def test_gumbel_muzero_keeps_poles_up(tmp_path: Path) -> None:
    pytest.importorskip("mctx")
    printed = output_of(tmp_path, "gumbel_muzero.py", "--steps", "60", "--games", "4")
    assert number("score of the search:", printed) == 60
    assert number("random player:", printed) < 50


@pytest.mark.full
def test_mppi_swings_the_pendulum_up(tmp_path: Path) -> None:
    printed = output_of(tmp_path, "mppi.py")
    assert number("return of MPPI:", printed) > -400
    assert number("random player:", printed) < -700
    assert number("the last reward:", printed) > -0.1


@pytest.mark.parametrize(("seconds", "plans"), first_of([("0.81", "8"), ("10.02", "64")]))
def test_a_humanoid_stands(tmp_path: Path, seconds: str, plans: str) -> None:
    pytest.importorskip("mujoco")
    # Without control it has fallen after 0.66 s, and with random controls after 0.6 s or sooner.
    printed = output_of(tmp_path, "humanoid.py", "--seconds", seconds, "--plans", plans)
    assert number("seconds:", printed) == float(seconds) and "it stands" in printed


@pytest.mark.full
def test_go_explore_finds_places(tmp_path: Path) -> None:
    printed = output_of(tmp_path, "go_explore.py", "ALE/MsPacman-v5", "--budget", "7000")
    assert number("cells:", printed) > 50
    assert number("best score:", printed) > 0


def test_rooms_are_drawn(tmp_path: Path) -> None:
    map_file = tmp_path / "rooms.png"
    name = "ALE/MontezumaRevenge-v5"
    printed = output_of(tmp_path, "go_explore.py", name, "--budget", "1000", "--map", str(map_file))
    assert "rooms:      1 (" in printed
    with Image.open(map_file) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    # One room of 24 is dark, the others are light, and places in it have a colour.
    dark = (pixels == 0x21).all(axis=1).sum()
    light = (pixels == 0xEE).all(axis=1).sum()
    assert 10 < light / dark < 40
    assert (np.ptp(pixels.astype(int), axis=1) > 50).sum() > 100


@pytest.mark.full
def test_go_explore_works_by_cells_of_the_observation(tmp_path: Path) -> None:
    printed = output_of(tmp_path, "go_explore.py", "MountainCar-v0", "--budget", "10000")
    assert number("cells:", printed) > 50
    assert "replayed: True" in printed


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [
        ("humanoid.py", "--seconds", "0"),
        ("connect_four.py", "--threads", "0"),
        ("connect_four.py", "--seconds", "nan"),
    ],
)
def test_a_number_that_is_too_small_is_a_clear_error(
    tmp_path: Path, script: str, option: str, value: str
) -> None:
    colon = ":" * (script == "connect_four.py")  # argparse says it
    assert_refused(tmp_path, f"{option}{colon} must be at least", script, option, value)


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    first_of(
        [
            ("go_explore.py", ("ALE/MsPacman-v5", "--cells", "position"), "needs room, x and y"),
            ("go_explore.py", ("HalfCheetah-v5",), "no cells for these observations"),
            ("go_explore.py", ("CartPole-v1", "--cells", "fixed"), "ScreenCells needs screens"),
            ("go_explore.py", ("MountainCar-v0", "--map", "a.png"), "only Montezuma's Revenge has"),
            ("fmc.py", ("CartPole-v1", "--walkers", "0"), "walkers must be a whole number"),
            ("uct.py", ("Pendulum-v1",), "for continuous actions use CEM"),
            ("mppi.py", ("CartPole-v1", "--steps", "1"), "needs continuous actions"),
        ]
    ),
)
def test_what_cannot_be_searched_is_a_clear_error(
    tmp_path: Path, script: str, arguments: tuple[str, ...], words: str
) -> None:
    budget = () if script == "mppi.py" else ("--budget", "500")
    assert_refused(tmp_path, words, script, *arguments, *budget)


_FILM = """
import show
found = {"id": "CartPole-v1", "kwargs": {}, "seed": 0, "actions": [[0, 1], [1, 1]] * 4}
show.film("short.gif", found, seconds=1e-9)
show.film("long.gif", found)
"""


def test_a_film_that_takes_too_long_ends_early(tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}){_FILM}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "the film shows 1 of 8 steps, because it took so long\n"
    assert "film" not in outcome.stderr, "progress is shown on terminals only"
    with Image.open(tmp_path / "short.gif") as short, Image.open(tmp_path / "long.gif") as long:
        # Images in which nothing has moved become one.
        assert short.n_frames <= 2 < long.n_frames <= 5


def _cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells that hold code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_search", "states"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path: Path) -> None:
    for cell in _cells(path):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code = "\n\n".join("".join(cell["source"]) for cell in _cells(path))
    script = tmp_path / f"{path.stem}.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        # Without windows, and without the warning of Agg that it shows nothing
        env={**os.environ, "MPLBACKEND": "svg", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
