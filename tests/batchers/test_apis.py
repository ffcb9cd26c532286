"""Each of the three APIs uses the workers and no other API: it works without the other two."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BATCHERS = ROOT / "plangym_like" / "batchers"
APIS = sorted(
    path.parent.name for path in BATCHERS.glob("*/__init__.py") if path.parent.name != "workers"
)


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
