"""The tables in the documentation show the records that are committed with them."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
from typing import Any

import pytest

from plangym_like.planners import GoExplore, Progress

ROOT = pathlib.Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def _records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIGURES / "results.json").read_text())
    return found


def _published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIGURES / "published.json").read_text())
    return found


def test_the_page_is_what_the_files_hold(benchmark: Any) -> None:
    results_page = benchmark("results_page")

    head, _, shown = (ROOT / "docs" / "results.md").read_text().partition(results_page.BEGIN)
    assert "make results" in head
    assert shown.strip() == results_page.tables(_records(), _published()).strip()


@pytest.mark.parametrize(("script", "name"), [("ray_bench", "ray"), ("rollout_bench", "rollouts")])
def test_the_table_of_a_contest_is_that_of_its_records(
    benchmark: Any, script: str, name: str
) -> None:
    contest, results = benchmark(script), benchmark("harness").known(name)
    page = benchmark("interleave").comparison(results, contest.TITLE, contest.OVER)
    assert page.strip() == (FIGURES / f"{name}.md").read_text().strip()


def test_every_published_number_has_a_source_and_a_budget() -> None:
    numbers = _published()
    named = {column for row in numbers["scores"].values() for column in row}
    assert named == set(numbers["sources"])
    for source in numbers["sources"].values():
        assert "http" in source["source"]
        assert source["budget"]
    for found in numbers["montezuma"]:
        assert "http" in found["source"] and found["frames"] >= 100_000_000


def test_every_record_can_be_repeated() -> None:
    for name, record in _records().items():
        if name.startswith(("atari/", "montezuma/")) and "/Random/" not in name:
            assert record["replayed"] is True, name
            assert record["frames"] > 0, name


def test_a_table_has_one_budget(benchmark: Any) -> None:
    results_page = benchmark("results_page")

    def run(score: float) -> dict[str, Any]:
        return {"score": score, "game_frames": 16, "ended": False, "frames": 1000}

    records = {
        "atari/Pong/IW/1000/0": run(500.0),
        "atari/Pong/IW/400000/0": run(2.5),
        "atari/Pong/Random/400000/0": {"score": -20.0, "games": 20},
    }
    text = results_page.tables(records, _published())
    assert "| Pong | -20 | 2.5 / 16 |" in text


def test_scores_stand_beside_those_with_equal_budgets(benchmark: Any) -> None:
    results_page = benchmark("results_page")

    run = {"score": 98.0, "frames_per_action": 149_872, "actions": 200}
    found = {
        "uct-2013/Boxing/0": run,
        "rollout-iw/Boxing/RolloutIW/0": {**run, "frames_per_action": 930},
        "rollout-iw/Boxing/RolloutIW/1": {**run, "score": 90.0, "frames_per_action": 932},
        "samples/Hopper-v5/CEM/100/0": {"return": 110.0},
        "samples/Hopper-v5/ICEM/100/0": {"return": 150.0},
        "samples/Hopper-v5/ICEM/100/1": {"return": 250.0},
    }
    text = results_page.tables(found, _published())
    assert "| Boxing | 98 | 149,872 | 200 | 1 | 0.1 | 4.3 | 100 |" in text
    assert "| Boxing | 94 / 931 |  |  | 2 / 0 / 0 | 0.1 | 4.3 | 78.6 |" in text
    assert "| Hopper-v5 | 100 | 110 | 200 (150 to 250) | 1 and 2 |" in text


def test_rooms_are_counted_within_the_frames_of_a_search(benchmark: Any) -> None:
    results_page = benchmark("results_page")

    one = {"frames": 99_999_872, "score": 6600.0, "cells": 9000, "seconds": 7200.0}
    few = {**one, "frames": 3_999_780, "rooms": {"1": 256, "0": 700_000}, "load": 4.3}
    many = {**one, "rooms": {"1": 256, "0": 700_000, "2": 45_000_000}}
    found = {"montezuma/100000000/0": many, "montezuma/4000000/7": few}
    text = results_page.tables(found, _published())
    small = "| 3,999,780 | 7 | 6,600 | 9,000 | 7,200 s, load 4.3 | 1 | 2 | 2 | 2 |  |  |  |"
    large = "| 99,999,872 | 0 | 6,600 | 9,000 | 7,200 s | 1 | 2 | 2 | 2 | 2 | 2 | 3 |"
    assert text.index(small) < text.index(large) < text.index("| 100,000,000 | 2,745 |")


def test_tasks_have_one_name_each(benchmark: Any) -> None:
    results = benchmark("results")

    names = [name for name, _, _ in results.tasks(1000, 2)]
    assert len(names) == len(set(names))
    assert len({name.split("/")[1] for name in names if name.startswith("atari/")}) >= 12
    assert len({name.split("/")[1] for name in names if name.startswith("control/")}) == 8


def test_a_long_search_goes_on_where_it_was_stopped(
    benchmark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atari_results = benchmark("atari_results")

    def stop(progress: Progress) -> None:
        if progress.done > 0.5:
            raise KeyboardInterrupt

    task: dict[str, Any] = {"frames": 2_000, "seed": 0, "folder": tmp_path}
    whole = atari_results.montezuma(**task)
    monkeypatch.setattr(atari_results, "_EVERY", 1e-9)
    with monkeypatch.context() as patch:
        plan = functools.partialmethod(GoExplore.plan, progress=stop)
        patch.setattr(GoExplore, "plan", plan)
        with pytest.raises(KeyboardInterrupt):
            atari_results.montezuma(**task)
    assert list(tmp_path.iterdir())
    resumed = atari_results.montezuma(**task)
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    assert not list(tmp_path.iterdir())


def test_a_planner_plays_a_game_within_its_frames(benchmark: Any) -> None:
    atari_results = benchmark("atari_results")

    options: dict[str, Any] = {"game": "MsPacman", "planner": "FractalMonteCarlo", "seed": 0}
    record = atari_results.play_game(**options, frames=4_000)
    assert record["replayed"] and record["game_frames"] > 0
    assert 0 < record["frames"] <= 6_000


# The table of support, and that of environments of other packages


def test_a_piece_is_added_to_the_support_table(
    benchmark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = benchmark("support_table")
    for module in (benchmark("harness"), table):
        monkeypatch.setattr(module, "FIGURES", tmp_path)
    for name, few in (("STATES", 2), ("STEPS", 3), ("WORKERS", "")):
        monkeypatch.setattr(table, name, few)
    asked = {"states": 2, "steps": 3, "workers": ""}
    old = {"group": "toy_text", "ok": False, "reason": "a\nb|c", "asked": asked}
    (tmp_path / "support.json").write_text(json.dumps({"Old-v0": old}))
    monkeypatch.setattr(sys, "argv", ["support_table.py", "--only", "^(CartPole-v1|Ant-v2)$"])
    assert table.main() == 0
    found = json.loads((tmp_path / "support.json").read_text())
    assert found["CartPole-v1"]["ok"] and found["CartPole-v1"]["group"] == "classic_control"
    page = (tmp_path / "checked.md").read_text()
    assert "3 environments were checked, 1 of them are exact" in page
    assert "| `CartPole-v1` | native | exact | 112 |" in page
    assert f"| `Ant-v2` | {found['Ant-v2']['reason'][:20]}" in page and "| a b/c |" in page
    assert "| classic_control (1) | native | exact |" in (tmp_path / "support.md").read_text()


def test_a_curve_may_go_on_without_the_perfect_player(
    benchmark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    gallery = benchmark("gallery")
    monkeypatch.setattr(gallery, "FIGURES", tmp_path)
    points = [{"games": games, "seconds": 60.0, "against UCT": 0.5} for games in (4, 8)]
    points[0]["against the perfect player"] = 0.1
    record = {"curve": points, "game": [3, 2, 3, 2, 3, 2, 3]}
    (tmp_path / "connect_four.json").write_text(json.dumps(record))
    assert gallery.learner() == "8 games in 1 minutes: 50% against UCT; AlphaZero wins"
    assert (tmp_path / "gallery_learner.png").exists()


def test_no_report_names_the_folder_of_a_virtual_environment(benchmark: Any) -> None:
    table = benchmark("third_party")
    said = "File '/tmp/mine/lib/python3.11/site-packages/doom/doom.wad' does not exist."
    assert table.without_folders(said) == "File 'site-packages/doom/doom.wad' does not exist."
    reports = table.known("third_party")
    page = (ROOT / "docs" / "figures" / "third_party.md").read_text(encoding="utf-8")
    assert page == table.without_folders(page) and page.strip() == table.page(reports).strip()


def test_the_table_counts_outcomes_and_says_what_was_said(benchmark: Any) -> None:
    table = benchmark("third_party")
    one = {"package": "zoo", "version": "1.0", "outcome": "exact", "said": ""}
    two = {**one, "outcome": "refused", "said": "SnapshotError: a | b"}
    text = table.page({"Cat-v0": one, "Dog-v0": two, "Eel-v0": two})
    assert "| zoo 1.0 | 1 |  | 2 |  |  |  |" in text and "| all | 1 |  | 2 |" in text
    assert "| `Dog-v0`, `Eel-v0` | zoo 1.0: refused | SnapshotError: a / b |" in text


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        ({"ok": True, "exactness": "exact"}, "exact"),
        ({"ok": True, "exactness": "approximate", "exactness_note": "a set"}, "approximate"),
        ({"ok": False, "error": "SnapshotError: no", "reason": "SnapshotError: no"}, "refused"),
        ({"ok": False, "error": "KeyError: 1", "reason": "KeyError: 1"}, "not with Gymnasium"),
        ({"ok": False, "failed": [{"detail": "ImpureEnvironmentError: x"}]}, "noticed"),
        ({"ok": False, "failed": [{"detail": "row 3 differs"}]}, "silently wrong"),
        ({"ok": False, "reason": "it ended with -11"}, "failed"),
    ],
)
def test_what_a_report_means(benchmark: Any, report: dict[str, Any], outcome: str) -> None:
    assert benchmark("third_party").judged(report)["outcome"] == outcome
