"""Each door stands on the engine alone: any two may be taken away."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCHERS = ROOT / "plangym_like" / "batchers"
DOORS = sorted(
    path.parent.name for path in BATCHERS.glob("*/__init__.py") if path.parent.name != "engine"
)
TESTED = [door for door in DOORS if (ROOT / "tests" / "batchers" / door).is_dir()]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", [*DOORS, "engine"])
def test_neither_doors_nor_engine_import_another_door(room: str) -> None:
    others = tuple(f"plangym_like.batchers.{door}" for door in DOORS if door != room)
    files = [*(BATCHERS / room).rglob("*.py"), *(ROOT / "tests" / "batchers" / room).rglob("*.py")]
    found = {name for path in files for name in _imports(path) if name.startswith(others)}
    assert found == set()


def _take_away_the_others(door: str, target: Path) -> None:
    junk = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "plangym_like", target / "plangym_like", ignore=junk)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=junk)
    shutil.copy(ROOT / "setup.cfg", target)
    for other in set(DOORS) - {door}:
        shutil.rmtree(target / "plangym_like" / "batchers" / other)
        shutil.rmtree(target / "tests" / "batchers" / other, ignore_errors=True)


def _run(arguments: list[str], directory: Path) -> str:
    outcome = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.mark.parametrize("door", DOORS)
def test_a_door_opens_without_the_others(door: str, tmp_path: Path) -> None:
    _take_away_the_others(door, tmp_path)
    modules = [
        ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        for path in (tmp_path / "plangym_like" / "batchers" / door).rglob("*.py")
    ]
    script = "import importlib, sys; print(*map(importlib.import_module, sys.argv[1:]), sep='\\n')"
    shown = _run(["-c", script, *modules], tmp_path).splitlines()
    assert len(shown) == len(modules) > 0
    assert all(str(tmp_path) in line for line in shown)


def test_without_torch_the_install_command_is_named(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from plangym_like.errors import MissingExtraError\n"
        "try:\n    import plangym_like.batchers.rollout\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    assert "pip install 'plangym_like[torch]'" in _run(["-c", script], ROOT)


@pytest.mark.full
@pytest.mark.parametrize("door", TESTED)
def test_the_suite_of_a_door_passes_without_the_others(door: str, tmp_path: Path) -> None:
    _take_away_the_others(door, tmp_path)
    _run(["-m", "pytest", "-q", "-x", f"tests/batchers/{door}"], tmp_path)
