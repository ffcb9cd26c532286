"""Run plangym's own tests against `plangym_like.compat.plangym`, and print what passes.

::

    python benchmarks/plangym_suite.py PATH_OF_PLANGYM_SOURCES [--only atari]

Results of all files are kept in ``docs/figures/plangym.json``, and a table of them is written to
``docs/figures/plangym.md``; with ``--quick``, nothing is written.

Nothing is downloaded, and the sources are not changed: tests are copied to a temporary folder, in
which ``import plangym`` imports the layer. The module ``plangym.api_tests``, which is a part of the
tests, is copied too. No display is needed: SDL uses its dummy driver, and a stub that does nothing
replaces ``pyvirtualdisplay``. Needs pytest and pytest-timeout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

from harness import known, parser, publish, table

HERE = Path(__file__).resolve().parents[1]

CONFTEST = '''
"""Makes ``import plangym`` mean the layer."""

import importlib
import importlib.abc
import importlib.util
import sys
import types

import pytest

LAYER = "plangym_like.compat.plangym"


class Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports ``plangym.x`` as ``plangym_like.compat.plangym.x``, the same object."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "plangym" or name == LAYER + ".api_tests":
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        if spec.name.endswith(".api_tests"):
            return importlib.import_module("src.plangym.api_tests")
        return importlib.import_module(LAYER + spec.name[len("plangym"):])

    def exec_module(self, module):
        module.__spec__ = importlib.util.spec_from_loader(module.__name__, None, is_package=True)


sys.meta_path.insert(0, Alias())
display = types.ModuleType("pyvirtualdisplay")
display.Display = lambda **kwargs: types.SimpleNamespace(start=bool, stop=bool)
sys.modules["pyvirtualdisplay"] = display
try:
    import ray
except ImportError:
    pass
else:
    # Newer versions of Ray have no local mode. Another cluster of this machine is not used.
    def init(local_mode=False, *, start=ray.init, **kwargs):
        return start("local", num_cpus=2, include_dashboard=False, **kwargs)

    ray.init = init


def pytest_collection_modifyitems(items):
    for item in items:
        if item.parent.name in ("TestBatchEnv", "TestExternalProcess"):
            item.add_marker(pytest.mark.skip("it is of plangym's internal classes for workers"))
'''


def copy_tests(sources: Path, folder: Path) -> None:
    """Copy plangym's tests into `folder`, with a ``conftest.py`` that names the layer plangym."""
    shutil.copytree(sources / "tests", folder / "tests")
    package = folder / "src" / "plangym"
    package.mkdir(parents=True)
    (folder / "src" / "__init__.py").touch()
    (package / "__init__.py").touch()
    shutil.copy(sources / "src" / "plangym" / "api_tests.py", package)
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")


def run_tests(sources: Path, file: str) -> dict[str, Any]:
    """Run one file of tests; return how many passed, which failed, and why others are skipped."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tests(sources, folder)
        report = folder / "report.xml"
        environ = {
            **os.environ,
            "PYTEST_ADDOPTS": "",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(folder)]),
            "SDL_VIDEODRIVER": "dummy",
            "SDL_AUDIODRIVER": "dummy",
            "DISPLAY": "",
            # Which environment a test gets depends on the order of sets.
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, "-m", "pytest", file, "-q", "-p", "no:cacheprovider"]
        command += ["--tb=short", "--timeout", "300", "-W", "ignore", f"--junitxml={report}"]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        if not report.exists():
            raise SystemExit(f"pytest did not run {file}:\n{done.stdout[-3000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    passed, failed, reasons = 0, [], Counter[str]()
    for case in cases:
        skipped = case.find("skipped")
        if skipped is not None:
            reasons[skipped.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{file}::{case.get('classname')}::{case.get('name')}")
        else:
            passed += 1
    if failed:
        print(done.stdout)
    return {"passed": passed, "failed": failed, "skipped": dict(reasons)}


def page(files: dict[str, Any]) -> str:
    """Return the results as tables in Markdown."""
    rows, reasons = [], Counter[str]()
    for file, found in sorted(files.items()):
        reasons.update(found["skipped"])
        numbers = found["passed"], len(found["failed"]), sum(found["skipped"].values())
        rows.append((file.removeprefix("tests/").removesuffix(".py"), *numbers))
    rows.append(("all", *(sum(row[column] for row in rows) for column in (1, 2, 3))))
    lines = table(("tests", "passed", "failed", "skipped"), rows)
    return "\n".join([*lines, *table(("why tests are skipped", "tests"), reasons.most_common())])


def main() -> None:
    """Run the files, and print and write the tables."""
    options = parser(__doc__)
    options.add_argument("sources", type=Path, help="a checkout of plangym")
    options.add_argument("--only", default="", help="files whose names contain this")
    chosen = options.parse_args()
    sources = chosen.sources.resolve()
    files = known("plangym")
    for path in sorted((sources / "tests").rglob("test_*.py")):
        if chosen.only not in path.name:
            continue
        file = path.relative_to(sources).as_posix()
        files[file] = run_tests(sources, file)
        print(f"{file}: {files[file]['passed']} passed", *files[file]["failed"], sep="\n  ")
        sys.stdout.flush()
        if not chosen.quick:
            publish("plangym", files, page(files))
    print(page(files))


if __name__ == "__main__":
    main()
