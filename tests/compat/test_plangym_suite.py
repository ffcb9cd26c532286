"""The script that runs plangym's tests on the layer."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import numpy
import pytest
from plangym import api_tests, make
from plangym.api_tests import cart
from src.plangym.api_tests import cart as again
from plangym.control.classic_control import ClassicControl
import plangym.core


def test_that_passes():
    env = cart()
    assert type(env) is ClassicControl and isinstance(env, plangym.core.PlanEnv)
    assert cart is again is api_tests.cart
    assert plangym.__name__ == "plangym_like.compat.plangym"


def test_that_fails():
    assert cart().frameskip == 2


def test_that_plangym_skips():
    pytest.skip("not here")
"""


def _suite() -> Any:
    place = ROOT / "benchmarks" / "plangym_suite.py"
    spec = importlib.util.spec_from_file_location("plangym_suite", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_tests_of_plangym_on_the_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = tmp_path / "plangym"
    (sources / "tests").mkdir(parents=True)
    (sources / "tests" / "__init__.py").touch()
    (sources / "tests" / "test_small.py").write_text(TESTS, encoding="utf-8")
    (sources / "src" / "plangym").mkdir(parents=True)
    api_tests = 'import plangym\n\n\ndef cart():\n    return plangym.make("CartPole-v1")\n'
    (sources / "src" / "plangym" / "api_tests.py").write_text(api_tests, encoding="utf-8")
    results = tmp_path / "results.json"
    other = {"tests/test_other.py": {"passed": 1, "failed": [], "not counted": {}}}
    results.write_text(json.dumps(other), encoding="utf-8")
    arguments = ["plangym_suite.py", str(sources), "-n", "0", "--json", str(results), "--failures"]
    monkeypatch.setattr("sys.argv", arguments)
    _suite().main()
    found = json.loads(results.read_text(encoding="utf-8"))
    assert found == {
        **other,
        "tests/test_small.py": {
            "passed": 1,
            "failed": ["tests/test_small.py::tests.test_small::test_that_fails"],
            "not counted": {"plangym skips it: not here": 1},
        },
    }
    table = results.with_suffix(".md").read_text(encoding="utf-8")
    assert "| all | 2 | 1 | 1 |\n\n66.7% of the tests that are counted pass.\n" in table
    printed = capsys.readouterr().out
    assert "assert 1 == 2" in printed and table in printed


def test_the_committed_table_is_that_of_the_results() -> None:
    results = ROOT / "docs" / "figures" / "plangym.json"
    files = json.loads(results.read_text(encoding="utf-8"))
    assert _suite().table(files) == results.with_suffix(".md").read_text(encoding="utf-8")
