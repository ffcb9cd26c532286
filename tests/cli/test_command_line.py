"""``plangym-like``: its commands, exit statuses and pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted import script_environ
from PIL import Image
from suite import TAXI

import plangym_like
from plangym_like import planners
from plangym_like.cli import main, saving
from plangym_like.cli.planner_classes import kebab, planner_classes
from plangym_like.planners import Plan, Planner, Search

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "plangym_like"]
QUICK = ["--budget", "1000", "--option", "horizon=10"]
CHECKED = ["--states", "3", "--steps", "4", "--workers", ""]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def milliseconds(film: Any) -> list[int]:
    """Return how long each frame of a GIF is shown."""
    return [film.seek(frame) or film.info["duration"] for frame in range(film.n_frames)]


def test_every_planner_has_a_name() -> None:
    classes = planner_classes()
    assert classes["random-shooting"] is planners.RandomShooting
    public = [getattr(planners, name) for name in planners.__all__]
    kinds = [one for one in public if isinstance(one, type) and issubclass(one, Planner)]
    assert len(classes) == len(kinds) - 1, "all but Planner itself"
    assert kebab("MuZeroSearch") == "mu-zero-search"


def test_a_plan_for_a_game_shows_the_moves(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel")
    game = ["plan", "openspiel/nim(pile_sizes=1;2)", "--budget", "2000"]
    found = told(capsys, *game)
    assert found["planner"] == "uct" and len(found["game"].pop("moves")) == 2
    assert found["game"] == {"player": 0, "value": 1.0, "solved": True, "length": 2}
    main(game)
    assert "for player 0, solved: the game ends after 2 moves; " in capsys.readouterr().out


def test_a_plan_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "some" / "where"
    arguments = ["plan", "CartPole-v1", *QUICK, "--seed", "3", "--out", str(out)]
    found = told(capsys, *arguments)
    assert found["score"] == found["replayed_score"] == found["length"] == 10
    assert found["planner"] == "random-shooting" and 0 < found["transitions"] <= 1000
    assert [Path(one).name for one in found["files"]] == [
        "actions.json",
        "plan.json",
        "curve.png",
        "plan.gif",
    ]
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=3)
        same = planners.RandomShooting(env, horizon=10).plan(budget=1000, seed=3)
        plan = Plan.load(out / "plan.json")
        assert np.array_equal(plan.actions, same.actions) and plan.replay(env) == 10
        written = json.loads((out / "actions.json").read_text())
        env.reset(seed=written["seed"])
        rewards = [env.step(action, dt=dt).reward for action, dt in written["actions"]]
        assert sum(rewards) == written["score"]
    with Image.open(out / "plan.gif") as film, Image.open(out / "curve.png") as curve:
        # Frames that look the same are one that is shown for longer.
        assert sum(milliseconds(film)) == 11 * 40 and film.height <= 240
        pixels = np.asarray(curve.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 50 and (pixels == (21, 101, 192)).all(axis=1).any()


def test_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_this_test.py").write_text(
        "import gymnasium\n"
        "import numpy\n"
        "def lake(holes=()):\n"
        "    return gymnasium.make('FrozenLake-v1', is_slippery=False)\n"
        "def way(obs, infos, states):\n"
        "    return 6 - obs // 4 - obs % 4\n"
        "def turn(obs, infos, states):\n"
        "    return numpy.zeros(len(states), int)\n"
        "def evaluate(obs):\n"
        "    return numpy.full((len(obs), 4), 0.25), numpy.zeros(len(obs))\n"
    )
    monkeypatch.chdir(tmp_path)
    # As in the script that pip installs: without the current folder.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    plan = ["plan", "mine_of_this_test:lake", "--budget", "300"]
    star = ["--planner", "a-star", "--option", "heuristic=mine_of_this_test:way"]
    # JSON has no sets.
    found = told(capsys, *plan, *star, "--option", "key=obs", "--set", "holes={1}")
    assert found["kwargs"] == {"holes": "{1}"}
    assert (found["score"], found["length"]) == (1.0, 6)
    assert found["options"]["heuristic"] == "mine_of_this_test:way"
    game = told(capsys, *plan, "--option", "to_play=mine_of_this_test:turn")
    assert game["planner"] == "uct" and game["game"]["player"] == 0
    puct = ["--planner", "puct", "--option", "evaluate=mine_of_this_test:evaluate"]
    assert told(capsys, *plan, *puct, "--checkpoint", "saved")["planner"] == "puct"
    resume = ["plan", "mine_of_this_test:lake", "--resume", "saved", "--budget", "400"]
    assert main(resume) == 2
    assert "or --option evaluate=module:callable on the command line" in capsys.readouterr().err
    assert told(capsys, *resume, *puct[2:])["planner"] == "puct"
    for name, words in (("mine_of_this_test:not", "_test' has no 'not'"), ("no:no", "No mod")):
        assert main([*plan, "--planner", "puct", "--option", f"evaluate={name}"]) == 2
        assert words in capsys.readouterr().err


def test_a_model_of_mujoco_and_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco")
    (tmp_path / "slider.xml").write_text(
        '<mujoco><worldbody><body><joint name="x" type="slide"/><geom size="1"/></body></worldbody>'
        '<actuator><motor joint="x" ctrlrange="-1 1" ctrllimited="true"/></actuator></mujoco>'
    )
    (tmp_path / "reward_of_this_test.py").write_text("def up(data):\n    return data.qvel[:, 0]\n")
    monkeypatch.chdir(tmp_path)
    plan = ["plan", "slider.xml", "--budget", "300", "--planner", "mppi", "--option", "horizon=5"]
    named = [*plan, "--reward", "reward_of_this_test:up", "--set", "n_substeps=3"]
    found = told(capsys, *named, "--set", "max_episode_steps=4")
    assert (found["length"], found["ended"]) == (4, True)
    assert found["score"] == found["replayed_score"]
    for reward, words in (
        ("reward_of_this_test:no", "like: --reward: the mod"),
        ("reward", "a function of"),
    ):
        assert main([*plan, "--reward", reward]) == 2
        assert words in capsys.readouterr().err
    assert main(plan) == 2
    assert "use plan with --reward" in capsys.readouterr().err
    assert main(["plan", "no.xml", *plan[2:], "--reward", "reward_of_this_test:up"]) == 2
    assert "cannot load the model" in capsys.readouterr().err


def test_a_replay_with_another_score_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Liar(Planner):
        def _search(self, state: Any, search: Search) -> Plan:
            step = search.step_batch([1], state)
            return search.plan(state, [1], step.rewards + 1, ended=False)

    monkeypatch.setattr(planners, "Liar", Liar, raising=False)
    monkeypatch.setattr(planners, "__all__", [*planners.__all__, "Liar"])
    assert main(["plan", "CartPole-v1", "--planner", "Liar", "--budget", "9"]) == 1
    assert "scored 2 with 1 actions" in (line := capsys.readouterr().out)
    assert "replayed: ANOTHER SCORE, 1" in line


def test_without_images_nothing_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["plan", "CartPole-v1", *QUICK, "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert "pip install 'plangym_like[viz]', or add --no-images" in capsys.readouterr().err
    assert main([*arguments, "--no-images"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"actions.json", "plan.json"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "CartPole-v1"], "needs --budget N"),
        (["plan", "CartPole-v1", "--budget", "9"], "a budget of 9 transitions is too small"),
        (["plan", "CartPole-v1", *QUICK, "--planner", "nothing"], "no planner 'nothing'; there"),
        (["plan", "CartPole-v1", *QUICK, "--option", "size=3"], "no option 'size'; it has hor"),
        (["plan", "CartPole-v1", *QUICK, "--workers", "-1"], "n_workers must be"),
        (["plan", "CartPole-v1", *QUICK, "--out", "/dev/null/x"], "--out: "),
        (["plan", "CartPoll-v1", *QUICK], "CartPoll-v1 cannot be made: NameNotFound"),
        (["info", "CartPole-v1", "--set", "color=red"], "cannot be made: "),
        (["info", "no_such_module:Env"], "cannot be made: ModuleNotFoundError"),
        (["info", "json:Nope"], "importing json registers no id 'Nope'. The module has no"),
        (["info", ":Nope"], "must begin with the name of a module"),
        (["bench", "CartPole-v1", "--batches", "0"], "--batches needs numbers"),
        (["list", "nothing"], "no family 'nothing'; the families are"),
        (["list", "pgx"], "pgx's games are in functional"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    with pytest.raises(Exception, match=re.escape(words)):
        main(["--traceback", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "X", "--set", "y"],
        ["nothing"],
        *(["plan", "X", "--budget", number] for number in ("1.5", "1e999999999", "x")),
        ["plan", "X", "--seconds", "1e400"],
        ["bench", "X", "--batches", "1,x"],
        ["check", "X", "--workers", "1.5"],
        ["plan", "X", "--option", "=1e3"],
    ],
)
def test_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "usage: " in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"plangym-like {plangym_like.__version__}\n"


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(capsys, "info", "ALE/MsPacman-v5", "--set", "obs_type=ram")
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        assert facts["state_nbytes"] == env.state_nbytes
        assert facts["observation_space"] == str(env.observation_space)
    assert facts["snapshot"] == "native" and facts["exactness"] == "exact"
    assert main(["info", "gymnasium.envs.classic_control:PendulumEnv"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^saved by +pickle \(.+\)$", shown, re.MULTILINE)
    assert re.search(r"^bytes of a state +[\d,]+$", shown, re.MULTILINE)


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    measured = ["--seconds", "0.05", "--batches", "1,300", "--workers", "1"]
    result = told(capsys, "bench", "CartPole-v1", *measured)
    assert set(result["states_per_second"]) == {"1", "300"}
    assert all(
        set(row) == {"serial", "1 worker"} and min(row.values()) > 0
        for row in result["states_per_second"].values()
    )
    assert set(result["microseconds"]) == {*saving.COLUMNS}
    assert min(result["microseconds"].values()) > 0 and result["saved_by"] == "native"
    assert main(["bench", "CartPole-v1", "--seconds", "0.05", "--batches", "4"]) == 0
    shown = capsys.readouterr().out
    assert "states per second (times serial)" in shown
    assert re.search(
        r"^audits: rows that were stepped a second time: [\d,]+ of [\d,]+ \(serial\)", shown, re.M
    )
    assert set(result["rows_audited"]) == set(result["rows"]) == {"serial", "1 worker"}


def test_bench_measures_one_of_your_own_and_copies_only_what_can_be_copied(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benched.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Own(PendulumEnv):\n"
        "    pass\n"
        "class Lost(Own):\n"
        "    def __deepcopy__(self, memo):\n"
        "        other = type(self)()\n"
        "        other.reset(seed=5)\n"
        "        return other\n"
    )
    monkeypatch.chdir(tmp_path)
    measured = ["--seconds", "0.05", "--batches", "1", "--workers", "", "--set", "audit=off"]
    own, lost = (told(capsys, "bench", f"benched:{name}", *measured) for name in ("Own", "Lost"))
    assert own["saved_by"] == lost["saved_by"] == "pickle"
    assert min(own["microseconds"].values()) > 0
    missing = [column for column, value in lost["microseconds"].items() if value is None]
    assert missing == ["deepcopy + step"]
    assert main(["bench", "benched:Lost", *measured]) == 0
    assert re.search(r" own step .* saved by\n.* - .* pickle\n", capsys.readouterr().out)


def test_bench_takes_legal_actions_in_games(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "planners"))
    measured = ["--seconds", "0.05", "--batches", "1,64", "--workers", ""]
    result = told(capsys, "bench", "board_games:TicTacToe", *measured)  # it raises otherwise
    assert min(result["microseconds"].values()) > 0


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    ids = told(capsys, "list")
    assert "ALE/MsPacman-v5" in ids["atari"]
    assert ("walker-walk" in ids["dm_control"]) == (find_spec("dm_control") is not None)
    assert "CartPole-v1" in ids["classic"] and TAXI in ids["toy_text"]
    assert len(set().union(*ids.values())) == sum(map(len, ids.values()))
    assert main(["list", "toy-text"]) == 0
    assert capsys.readouterr().out.splitlines() == ids["toy_text"]
    assert main(["list"]) == 0
    assert f"atari              {len(ids['atari'])} ids" in capsys.readouterr().out
    known = told(capsys, "list", "planners")
    assert known["random-shooting"]["options"]["horizon"] == 30
    assert main(["list", "planners"]) == 0
    assert "    --option horizon=30" in capsys.readouterr().out


def test_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "FrozenLake-v1", *CHECKED, "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "CartPole-v1: every check passed" in told and "FrozenLake-v1: every" in told


def test_a_check_fails() -> None:
    command = [*COMMAND, "check", "broken_envs:ClassCounter", "--json", *CHECKED, "--steps", "20"]
    where: Any = {"cwd": ROOT / "tests/testing", "env": script_environ()}
    outcome = subprocess.run(command, capture_output=True, text=True, **where)
    assert outcome.returncode == 1, outcome.stderr
    report = json.loads(outcome.stdout)
    assert not report["ok"] and report["failed"][0]["check"] == "repeat"
    assert report["failed"][0]["field"] == "reward" and report["failed"][0]["step"] == 31


def test_arguments_of_check_reach_make(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "is_slippery=False", "--snapshot", "pickle", "--json"]
    assert main(["check", "CartPoll-v1", "FrozenLake-v1", *CHECKED, *settings]) == 2
    failed, passed = map(json.loads, capsys.readouterr().out.splitlines())
    assert failed["name"] == "CartPoll-v1" and not failed["ok"]
    assert failed["error"].startswith("NameNotFound: ")
    assert passed["snapshot"] == "pickle" and passed["ok"] and "error" not in passed
    assert main(["check", "FrozenLake-v1", *CHECKED, "--set", "map_name=9x9"]) == 2
    assert "KeyError: '9x9'" in capsys.readouterr().err


# Real processes


def test_a_reader_that_ends_early() -> None:
    process = subprocess.Popen(
        [*COMMAND, "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


def test_the_commands_in_the_documentation_run(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert script.count("plangym-like") > 6
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "plangym-like"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plangym_like "$@"\n')
    program.chmod(0o755)
    paths = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    outcome = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads((tmp_path / "plan.json").read_text())["length"] == 5


def test_a_killed_search_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "MountainCar-v0", "--planner", "go-explore", "--no-images"]
    written = ["--out", str(tmp_path / "whole")]
    whole = told(capsys, *arguments, "--budget", "8000", "--seed", "3", *written)
    folder = tmp_path / "search"
    code = (
        "import os, signal, sys\n"
        "from plangym_like.cli import main\n"
        "from plangym_like.planners import planner\n"
        "calls = 0\n"
        "class Repeated:\n"
        "    def __init__(self, save, every):\n"
        "        self.save = save\n"
        "    def __call__(self):\n"
        "        global calls\n"
        "        calls += 1\n"
        "        if calls % 10 == 0:\n"
        "            self.save()\n"
        "        if calls == 55:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "planner._repeated = Repeated\n"
        "main(sys.argv[1:])\n"
    )
    options = ["--budget", "8000", "--seed", "3", "--checkpoint", str(folder)]
    killed = subprocess.run([sys.executable, "-c", code, *arguments, *options])
    assert killed.returncode == -signal.SIGKILL
    resume = ["plan", "MountainCar-v0", "--resume", str(folder), "--no-images"]
    resumed = told(capsys, *resume, "--out", str(tmp_path / "resumed"))
    plan, same = (Plan.load(tmp_path / name / "plan.json") for name in ("whole", "resumed"))
    assert np.array_equal(plan.actions, same.actions)
    for name in ("planner", "seed", "score", "length", "ended", "transitions", "replayed_score"):
        assert resumed[name] == whole[name]
    more = told(capsys, *resume, "--budget", "9000")
    assert 8_000 < more["transitions"] <= 9_000


def test_searches_that_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ["plan", TAXI, "--resume", str(tmp_path)]
    for arguments, words in (
        (resume, "there is no search in"),
        ([*resume, "--steps", "3"], "not for --steps"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "command.json").write_text('{"id": "CartPole-v1", "seed": 0}')
    assert main(resume) == 2 and "is in CartPole-v1" in capsys.readouterr().err
    (tmp_path / "command.json").write_text(f'{{"id": "{TAXI}", "seed": 0}}')
    assert main(resume) == 2 and "no search was saved" in capsys.readouterr().err
