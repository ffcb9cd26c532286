"""The order of the house: where things live, what may import what, and what an import costs."""

import ast
import graphlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import plangym_like

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "plangym_like"
MODULES = sorted(PACKAGE.rglob("*.py"))

GROUND = {
    "errors",
    "fork_safety",
    "memory_limits",
    "row_errors",
    "batch_future",
    "transitions",
    "states",
    "state_files",
    "spaces",
    "batches",
    "phases",
    "stats",
    "simulator",
    "ownership",
    "random_state",
}
ENV = {"audit", "made_env", "standing_env", "plan_env"}
EXECUTION = {"processes", "execution", "cluster"}
# What each room may import, besides itself and the ground that all stand on.
BELOW = {
    "current_state": set(),
    "snapshots": set(),
    "audit": {"snapshots"},
    "made_env": {"audit", "current_state"},
    "standing_env": {"audit", "current_state", "made_env"},
    "plan_env": {"audit", "standing_env"},
    "envs": ENV | {"snapshots"},
    "processes": set(),
    "execution": ENV | {"processes"},
    "cluster": ENV | {"processes", "execution"},
    "registry": ENV | {"envs"} | EXECUTION,
    "testing": ENV | EXECUTION | {"snapshots", "envs", "registry"},
    "batchers": ENV | {"envs"} | EXECUTION,
    "cli": ENV | EXECUTION | {"envs", "registry", "testing", "batchers"},
}
DOORS = {"__init__", "__main__"}
FORBIDDEN_ROOMS = {"utils", "core", "common", "helpers"}
HEAVY = {"torch", "ray", "ale_py", "mujoco", "pygame", "matplotlib"}


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {_dotted(path) for path in MODULES}


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Yield the modules of this package that the nodes of ``tree`` import, by full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            levels = node.level - is_package
            parent = module.split(".")[: -levels or None] if node.level else []
            base = ".".join([*parent, *(node.module.split(".") if node.module else [])])
            # ``from package import name`` means the module of that name, where there is one.
            found = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in NAMES else base
                for alias in node.names
            ]
        else:
            continue
        yield from (name for name in found if name.split(".")[0] == PACKAGE.name)


class _AtRuntime(ast.NodeTransformer):
    """Drops what only a type checker reads."""

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        self.generic_visit(node)
        for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if for_types else node


def _imports_of(path: Path, *, at_runtime: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = _AtRuntime().visit(tree) if at_runtime else tree
    return set(_imports(found, _dotted(path), path.name == "__init__.py"))


def _room(module: str) -> str:
    """Return the first name below the package: a file of the ground floor, or a folder."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downward_only(path: Path) -> None:
    room = _room(_dotted(path))
    if room in DOORS:
        return
    assert room in GROUND or room in BELOW, f"{room} has no place in the order of the house yet"
    allowed = GROUND | BELOW.get(room, set()) | {room}
    upward = {name for name in _imports_of(path) if _room(name) not in allowed}
    assert upward == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        _dotted(path): _imports_of(path, at_runtime=True) - {_dotted(path)} for path in MODULES
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_relative_imports_are_resolved_too() -> None:
    source = ast.parse("from .states import x\nfrom .. import errors\nfrom . import nothing")
    found = set(_imports(source, "plangym_like.envs.somewhere", is_package=False))
    assert found == {"plangym_like.envs.states", "plangym_like.errors", "plangym_like.envs"}


def test_every_file_can_be_read_in_one_sitting() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert [f"{path}: {length}" for path, length in lengths.items() if length > 400] == []


def test_every_room_has_a_name_that_says_something() -> None:
    rooms = {part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert rooms & FORBIDDEN_ROOMS == set()


_MEASURE_IMPORT = """
import sys, time, numpy, gymnasium
before = set(sys.modules)
start = time.process_time()
import plangym_like
print(time.process_time() - start)
print(*(name for name in set(sys.modules) - before if "." not in name))
"""


def test_the_import_is_light() -> None:
    seconds: list[float] = []
    while len(seconds) < 3 or (min(seconds) >= 0.3 and len(seconds) < 20):
        answer = subprocess.run(
            [sys.executable, "-c", _MEASURE_IMPORT], capture_output=True, text=True, check=True
        )
        elapsed, loaded = answer.stdout.splitlines()
        seconds.append(float(elapsed))
        assert set(loaded.split()) & HEAVY == set()
    assert min(seconds) < 0.3


@pytest.mark.parametrize("name", sorted(plangym_like.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    public = getattr(plangym_like, name)
    if callable(public):
        assert inspect.getdoc(public)
    assert f"plangym_like.{name}\n" in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
