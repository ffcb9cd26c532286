"""The layers of the package: imports, names and lengths of files, and what an import costs."""

import ast
import functools
import graphlib
import inspect
import subprocess
import sys
from pathlib import Path

import plangym_like

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "plangym_like"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Modules here have plangym's names.
LIKE_PLANGYM = PACKAGE / "compat" / "plangym"

# Modules that every layer may import.
BASE = {"errors", "support", "results", "states", "batch"}
EXECUTION = {"processes", "execution", "cluster"}
ENV = {"audit", "gym_view", "env", "env_parts", "constructors"} | EXECUTION
# What each layer may import, besides itself and the base.
BELOW = {
    "snapshots": set(),
    "audit": {"snapshots"},
    "processes": set(),
    "execution": {"processes", "snapshots"},
    "cluster": {"processes", "execution"},
    "gym_view": set(),
    "env_parts": set(),
    "env": {"audit", "env_parts", "gym_view"},
    "constructors": ENV,
    "envs": {"env", "snapshots", "processes"},
    "registry": ENV | {"envs"},
    "archive": {"env"},
    "planners": {"env", "gym_view", "archive"},
    "testing": ENV | {"snapshots", "envs", "registry"},
    "vector": ENV | {"snapshots", "envs", "registry"},
    "batchers": ENV | {"snapshots", "envs", "registry", "vector"},
    "compat": ENV | {"snapshots", "envs", "registry"},
    "cli": ENV | {"envs", "registry", "testing", "vector", "batchers", "planners"},
}
# What each part of the base may import.
BELOW_IN_BASE = {
    "errors": set(),
    "support": {"errors"},
    "results": {"errors", "support"},
    "states": {"errors", "support"},
    "batch": {"errors", "support", "results", "states"},
}
ENTRY_POINTS = {"__init__", "__main__"}
FORBIDDEN_NAMES = {"utils", "core", "common", "helpers"}
HEAVY = {"torch", "ray", "ale_py", "mujoco", "pygame", "matplotlib"}


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {_dotted(path) for path in MODULES}


@functools.cache
def _imports_of(path: Path) -> set[str]:
    """Return the modules of this package that ``path`` imports, for types only or at runtime."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path} has a relative import"
            # ``from package import name`` means the module of that name, where there is one.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in NAMES else node.module for name in names}
    return {name for name in found if name.split(".")[0] == PACKAGE.name}


def _layer(module: str) -> str:
    """Return the first name below the package: a module or a folder."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_imports_run_downward_only() -> None:
    upward = set()
    for path in MODULES:
        layer = _layer(_dotted(path))
        if layer in ENTRY_POINTS:
            continue
        assert layer in BASE or layer in BELOW, f"{layer} is not in the list of layers yet"
        allowed = BELOW_IN_BASE[layer] if layer in BASE else BASE | BELOW[layer]
        found = {name for name in _imports_of(path) if _layer(name) not in allowed | {layer}}
        upward |= {f"{path.relative_to(ROOT)} imports {name}" for name in found}
    assert upward == set()


def test_imports_have_no_cycle() -> None:
    graph = {_dotted(path): _imports_of(path) - {_dotted(path)} for path in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_each_api_of_batchers_works_without_the_others() -> None:
    parts = {path.parent.name for path in (PACKAGE / "batchers").glob("*/__init__.py")}
    for part in parts:
        others = {f"plangym_like.batchers.{api}" for api in parts - {part, "workers"}}
        folders = (PACKAGE / "batchers" / part, ROOT / "tests" / "batchers" / part)
        files = [path for folder in folders for path in folder.rglob("*.py")]
        found = {name for path in files for name in _imports_of(path)}
        assert not [name for name in found if name.startswith(tuple(others))], part


def test_at_most_ten_layers_stand_on_each_other() -> None:
    below: dict[str, set[str]] = {}
    for path in MODULES:
        layer = _layer(_dotted(path))
        found = {_layer(name) for name in _imports_of(path)}
        below.setdefault(layer, set()).update(found - {layer})
    order = graphlib.TopologicalSorter({name: below[name] for name in BASE | BELOW.keys()})
    height: dict[str, int] = {}
    for layer in order.static_order():
        height[layer] = 1 + max((height[name] for name in below[layer]), default=0)
    assert max(height.values()) <= 10, height


def test_every_planner_has_less_than_200_lines() -> None:
    from plangym_like import planners

    public = [getattr(planners, name) for name in planners.__all__]
    kinds = [one for one in public if isinstance(one, type) and issubclass(one, planners.Planner)]
    kinds.remove(planners.Planner)
    lengths = {one: len(inspect.getsource(one).splitlines()) for one in kinds}
    assert [one for one, length in lengths.items() if length >= 200] == []


def test_every_module_has_a_name_that_says_something() -> None:
    named = [path for path in MODULES if LIKE_PLANGYM not in path.parents]
    names = {part for path in named for part in path.relative_to(ROOT).with_suffix("").parts}
    assert names & FORBIDDEN_NAMES == set()


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


def test_workers_of_rollouts_start_without_tensordict() -> None:
    # Its import takes over a second, in every worker.
    code = "import plangym_like.batchers.rollout.collector, sys; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = answer.stdout.split()
    assert "torch" in loaded and "tensordict" not in loaded


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = sorted(plangym_like.__all__)
    assert [name for name in names if f"plangym_like.{name}\n" not in page] == []
    public = {name: getattr(plangym_like, name) for name in names}
    assert [name for name, one in public.items() if callable(one) and not inspect.getdoc(one)] == []


def test_tests_of_one_family_need_no_other_simulator() -> None:
    code = (
        "import sys\n"
        "for name in ('ale_py', 'mujoco', 'dm_control', 'Box2D', 'torch', 'ray'):\n"
        "    sys.modules[name] = None\n"
        "import pytest\n"
        "sys.exit(pytest.main(sys.argv[1:]))\n"
    )
    files = [f"tests/envs/test_{family}.py" for family in ("retro", "classic_control", "toy_text")]
    options = ["-q", "-p", "no:cacheprovider", "--collect-only", *files]
    command = [sys.executable, "-c", code, *options]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert collected.returncode == 0, collected.stdout + collected.stderr


def test_no_test_imports_from_a_conftest() -> None:
    """Several folders have one: which of them is imported depends on what was collected before."""
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    wanting = [
        str(path) for path in files if "\nfrom conftest " in (ROOT / path).read_text("utf-8")
    ]
    assert wanting == []
