"""The script that runs plangym's tests on the layer."""

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
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


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import plangym_suite

    yield plangym_suite
    for name in ("plangym_suite", "harness"):
        sys.modules.pop(name, None)


def test_it_runs_tests_of_plangym_on_the_layer(
    tmp_path: Path, suite: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "test_small.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "src" / "plangym").mkdir(parents=True)
    api_tests = 'import plangym\n\n\ndef cart():\n    return plangym.make("CartPole-v1")\n'
    (tmp_path / "src" / "plangym" / "api_tests.py").write_text(api_tests, encoding="utf-8")
    found = suite.run_tests(tmp_path, "tests/test_small.py")
    assert found == {
        "passed": 1,
        "failed": ["tests/test_small.py::tests.test_small::test_that_fails"],
        "skipped": {"not here": 1},
    }
    assert "assert 1 == 2" in capsys.readouterr().out
    assert "| all | 1 | 1 | 1 |" in suite.page({"tests/test_small.py": found})


def test_the_committed_table_is_that_of_the_results(suite: Any) -> None:
    table = (ROOT / "docs" / "figures" / "plangym.md").read_text(encoding="utf-8")
    assert suite.page(suite.known("plangym")).strip() == table.strip()
