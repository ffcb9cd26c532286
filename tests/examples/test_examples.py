"""The examples are run as their readers run them: as scripts, from a directory of their own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from usual import first_of

EXAMPLES = Path(__file__).parents[2] / "examples"
# Transitions for which each is searched.
GAMES = {"CartPole-v1": "20000", "ALE/MsPacman-v5": "1000", "Pendulum-v1": "20000"}


def _run(directory: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)


def _printed(directory: Path, script: str, *arguments: str) -> str:
    outcome = _run(directory, script, *arguments)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern + r"\s*(-?[\d,]+(?:\.\d+)?)", text)
    assert found, text
    return float(found[1].replace(",", ""))


@pytest.fixture(scope="module", params=first_of(GAMES))
def game(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return the directory where `fmc.py` has just run, and what it printed."""
    directory = tmp_path_factory.mktemp("demo")
    arguments = (
        request.param,
        "--budget",
        GAMES[request.param],
        "--episodes",
        "2",
        "--workers",
        "2",
    )
    return directory, _printed(directory, "fmc.py", *arguments)


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
    assert _number("score of the search:", printed) == pytest.approx(found["score"], rel=1e-4)
    assert _number("random player:", printed) == pytest.approx(found["random_mean"], rel=1e-4)
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
    printed = _printed(directory, "replay.py", *player)
    assert repr(found["score"]) in printed and "the same" in printed


def test_a_replay_that_differs_says_so(game: tuple[Path, str]) -> None:
    directory, _ = game
    found = json.loads((directory / "demo" / "actions.json").read_text())
    wrong = directory / "wrong.json"
    wrong.write_text(json.dumps({**found, "score": found["score"] + 1}))
    outcome = _run(directory, "replay.py", str(wrong))
    assert outcome.returncode == 1 and "DIFFERENT" in outcome.stdout


@pytest.mark.full
def test_uct_keeps_the_pole_up(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "uct.py", "--steps", "80")
    assert _number("score of UCT:", printed) == 80
    assert _number("random player:", printed) < 60


def test_gumbel_muzero_keeps_poles_up(tmp_path: Path) -> None:
    pytest.importorskip("mctx")
    printed = _printed(tmp_path, "gumbel_muzero.py", "--steps", "60", "--games", "4")
    assert _number("score of the search:", printed) == 60
    assert _number("random player:", printed) < 50


@pytest.mark.full
def test_mppi_swings_the_pendulum_up(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "mppi.py")
    assert _number("return of MPPI:", printed) > -400
    assert _number("random player:", printed) < -700
    assert _number("the last reward:", printed) > -0.1


@pytest.mark.full
def test_go_explore_finds_places(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "go_explore.py", "ALE/MsPacman-v5", "--budget", "7000")
    assert _number("cells:", printed) > 50
    assert _number("best score:", printed) > 0


def test_rooms_are_drawn(tmp_path: Path) -> None:
    map_file = tmp_path / "rooms.png"
    name = "ALE/MontezumaRevenge-v5"
    printed = _printed(tmp_path, "go_explore.py", name, "--budget", "1000", "--map", str(map_file))
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
    printed = _printed(tmp_path, "go_explore.py", "MountainCar-v0", "--budget", "10000")
    assert _number("cells:", printed) > 50
    assert "replayed: True" in printed


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
    outcome = _run(tmp_path, script, *arguments, *budget)
    assert outcome.returncode == 2
    assert words in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("script", "env", "words"),
    first_of(
        [
            ("alphazero.py", "Pendulum-v1", "actions must be discrete"),
            ("a2c.py", "FrozenLake-v1", "observations must be vectors"),
            ("dqn.py", "CartPoll-v1", "Did you mean: `CartPole`"),
            ("reinforce.py", "no_module:Foo-v0", "No module named 'no_module'"),
        ]
    ),
)
def test_what_cannot_be_learned_is_a_clear_error(
    tmp_path: Path, script: str, env: str, words: str
) -> None:
    outcome = _run(tmp_path, script, "--env", env)
    assert outcome.returncode == 2
    assert words in outcome.stderr
    assert "Traceback" not in outcome.stderr


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
