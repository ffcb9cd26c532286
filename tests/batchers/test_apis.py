"""Each of the three APIs uses the workers and no other API: it works without the other two."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCHERS = ROOT / "plangym_like" / "batchers"
APIS = sorted(
    path.parent.name for path in BATCHERS.glob("*/__init__.py") if path.parent.name != "workers"
)
TESTED = [api for api in APIS if (ROOT / "tests" / "batchers" / api).is_dir()]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("folder", [*APIS, "workers"])
def test_neither_apis_nor_workers_import_another_api(folder: str) -> None:
    others = tuple(f"plangym_like.batchers.{api}" for api in APIS if api != folder)
    files = [
        *(BATCHERS / folder).rglob("*.py"),
        *(ROOT / "tests" / "batchers" / folder).rglob("*.py"),
    ]
    found = {name for path in files for name in _imports(path) if name.startswith(others)}
    assert found == set()


def _remove_the_others(api: str, target: Path) -> None:
    junk = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "plangym_like", target / "plangym_like", ignore=junk)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=junk)
    shutil.copy(ROOT / "setup.cfg", target)
    for other in set(APIS) - {api}:
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


@pytest.mark.full
@pytest.mark.parametrize("api", APIS)
def test_an_api_can_be_imported_without_the_others(api: str, tmp_path: Path) -> None:
    _remove_the_others(api, tmp_path)
    modules = [
        ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        for path in (tmp_path / "plangym_like" / "batchers" / api).rglob("*.py")
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
@pytest.mark.parametrize("api", TESTED)
def test_the_tests_of_an_api_pass_without_the_others(api: str, tmp_path: Path) -> None:
    _remove_the_others(api, tmp_path)
    _run(["-m", "pytest", "-q", "-x", f"tests/batchers/{api}"], tmp_path)
