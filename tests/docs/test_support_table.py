"""The support table is what was found: kept piece by piece, refusals with their reason."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

from suite import is_at_least

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "support_table.py"


def test_a_piece_is_added_to_what_is_known(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("support_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    monkeypatch.setattr(table, "FOUND", tmp_path / "support.json")
    monkeypatch.setattr(table, "PAGE", tmp_path / "checked.md")
    monkeypatch.setattr(table, "SUMMARY", tmp_path / "support.md")
    table.SUMMARY.write_text(f"Before.\n{table.MARKS[0]}old\n{table.MARKS[1]}After.\n")
    table.PAGE.write_text(f"By hand.\n\n{table.BEGIN}\n\nold\n")
    known = {"group": "toy_text", "ok": False, "reason": "a\nb|c", "asked": {}}
    known["asked"] = {"states": 2, "steps": 3, "workers": ""}
    table.FOUND.write_text(json.dumps({"Old-v0": known}))
    asked = ["--only", "^(CartPole-v1|Ant-v2)$", "--states", "2", "--steps", "3", "--workers", ""]
    monkeypatch.setattr(sys, "argv", ["support_table.py", *asked])
    assert table.main() == 0
    found = json.loads(table.FOUND.read_text())
    assert found["CartPole-v1"]["ok"] and found["CartPole-v1"]["group"] == "classic_control"
    page = table.PAGE.read_text()
    assert page.startswith("By hand.\n") and "old\n" not in page
    assert "3 environments were checked, 1 of them are exact" in page
    assert "| `CartPole-v1` | native | exact | 112 |" in page
    reason = "ImportError: The mujoco v2" if is_at_least("gymnasium", "1.2") else ""
    assert f"| `Ant-v2` | {reason}" in page and "| `Old-v0` | a b/c |" in page
    summary = table.SUMMARY.read_text()
    assert summary.startswith("Before.\n") and summary.endswith("After.\n")
    assert "old\n" not in summary and "| classic_control (1) | native | exact |" in summary
