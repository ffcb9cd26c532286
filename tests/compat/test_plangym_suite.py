"""The script that runs plangym's tests on the layer."""

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _suite() -> Any:
    place = ROOT / "benchmarks" / "plangym_suite.py"
    spec = importlib.util.spec_from_file_location("plangym_suite", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_table_is_that_of_the_results() -> None:
    results = ROOT / "docs" / "figures" / "plangym.json"
    files = json.loads(results.read_text(encoding="utf-8"))
    assert _suite().table(files) == results.with_suffix(".md").read_text(encoding="utf-8")
