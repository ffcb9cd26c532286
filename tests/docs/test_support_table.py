"""The support table is what was found: kept piece by piece, refusals with their reason."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "benchmarks"


def test_a_piece_is_added_to_what_is_known(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import harness
    import support_table as table

    try:
        for module in (harness, table):
            monkeypatch.setattr(module, "FIGURES", tmp_path)
        monkeypatch.setattr(table, "STATES", 2)
        monkeypatch.setattr(table, "STEPS", 3)
        monkeypatch.setattr(table, "WORKERS", "")
        asked = {"states": 2, "steps": 3, "workers": ""}
        old = {"group": "toy_text", "ok": False, "reason": "a\nb|c", "asked": asked}
        (tmp_path / "support.json").write_text(json.dumps({"Old-v0": old}))
        monkeypatch.setattr(sys, "argv", ["support_table.py", "--only", "^(CartPole-v1|Ant-v2)$"])
        assert table.main() == 0
    finally:
        for name in ("harness", "support_table"):
            sys.modules.pop(name, None)
    found = json.loads((tmp_path / "support.json").read_text())
    assert found["CartPole-v1"]["ok"] and found["CartPole-v1"]["group"] == "classic_control"
    page = (tmp_path / "checked.md").read_text()
    assert "3 environments were checked, 1 of them are exact" in page
    assert "| `CartPole-v1` | native | exact | 112 |" in page
    assert f"| `Ant-v2` | {found['Ant-v2']['reason'][:20]}" in page and "| a b/c |" in page
    assert "| classic_control (1) | native | exact |" in (tmp_path / "support.md").read_text()
