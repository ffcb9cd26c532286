"""Environments of other packages are judged by their reports."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import third_party

    yield third_party
    for name in ("third_party", "support_table", "harness"):
        sys.modules.pop(name, None)


def test_no_report_names_the_folder_of_a_virtual_environment(table: Any) -> None:
    said = "File '/tmp/mine/lib/python3.11/site-packages/doom/doom.wad' does not exist."
    assert table.without_folders(said) == "File 'site-packages/doom/doom.wad' does not exist."
    reports = table.known("third_party")
    page = (ROOT / "docs" / "figures" / "third_party.md").read_text(encoding="utf-8")
    assert page == table.without_folders(page) and page.strip() == table.page(reports).strip()


def test_the_table_counts_outcomes_and_says_what_was_said(table: Any) -> None:
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
def test_what_a_report_means(table: Any, report: dict[str, Any], outcome: str) -> None:
    assert table.judged(report)["outcome"] == outcome
