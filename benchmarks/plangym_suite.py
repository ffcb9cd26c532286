"""Run plangym's own tests against `plangym_like.compat.plangym`, and print what passes.

::

    python benchmarks/plangym_suite.py PATH_OF_PLANGYM_SOURCES [-n 2] [--only atari] [--json FILE]

With ``--json``, a table is also written next to the results, with the suffix ``.md``.

Nothing is downloaded, and the sources are not changed: tests are copied to a temporary folder, in
which ``import plangym`` imports the layer. The module ``plangym.api_tests``, which is a part of the
tests, is copied too. No display is needed: SDL uses its dummy driver, and a stub that does nothing
replaces ``pyvirtualdisplay``. Needs pytest, pytest-xdist and pytest-timeout.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parents[1]


class Excluded(NamedTuple):
    """Tests that are not counted, and the reason."""

    pattern: str
    reason: str


# Tests that fail for a reason outside the layer's interface.
EXCLUDED: tuple[Excluded, ...] = (
    Excluded("*.TestBatchEnv::*", "plangym's internal classes for workers"),
    Excluded("*.TestExternalProcess::*", "plangym's internal classes for workers"),
)

CONFTEST = '''
"""Makes ``import plangym`` mean the layer."""

import importlib
import importlib.abc
import importlib.util
import sys
import types

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


def run_tests(
    folder: Path, file: str, workers: int, only: Iterable[str] = ()
) -> list[tuple[str, str, str]]:
    """Run one file of tests, or some of them; return name, outcome and message of each test."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
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
    chosen = [node_id(test) for test in only] or [file]
    command = [sys.executable, "-m", "pytest", *chosen, "-q", "-p", "no:cacheprovider"]
    command += ["--tb=short", "--timeout", "300", "-W", "ignore"]
    if workers:
        command += ["-n", str(workers)]
    command.append(f"--junitxml={report}")
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if not report.exists():
        raise SystemExit(f"pytest did not run {file}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        outcome, message = "passed", ""
        for kind in ("failure", "error", "skipped"):
            part = case.find(kind)
            if part is not None:
                outcome = "skipped" if kind == "skipped" else "failed"
                message = f"{part.get('message', '')}\n{part.text or ''}"
        found.append((f"{file}::{case.get('classname')}::{case.get('name')}", outcome, message))
    return found


def node_id(test: str) -> str:
    """Return what pytest calls a test, from its name in the results."""
    file, place, name = test.split("::", 2)
    classes = place.removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(filter(None, (file, classes.replace(".", "::"), name)))


def results_of(found: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Return what passed, what failed, and how many tests are not counted for which reason."""
    passed, failed, reasons = 0, [], Counter[str]()
    for test, outcome, message in found:
        excluded = next((each for each in EXCLUDED if fnmatch.fnmatch(test, each.pattern)), None)
        if outcome == "passed":
            passed += 1
        elif outcome == "skipped":
            reasons["plangym skips it: " + message.partition("\n")[0]] += 1
        elif excluded is not None:
            reasons[excluded.reason] += 1
        else:
            failed.append(test)
    return {"passed": passed, "failed": failed, "not counted": dict(reasons)}


def table(files: dict[str, Any]) -> str:
    """Return the results as tables in Markdown."""
    lines = ["| tests | passed | failed | not counted |", "| --- | --- | --- | --- |"]
    total, reasons = Counter[str](), Counter[str]()
    for file in sorted(files):
        found = files[file]
        reasons.update(found["not counted"])
        counts = {
            "passed": found["passed"],
            "failed": len(found["failed"]),
            "not counted": sum(found["not counted"].values()),
        }
        total.update(counts)
        lines.append(
            "| ".join(
                (
                    f"| {file.removeprefix('tests/').removesuffix('.py')} ",
                    *(f"{count} " for count in counts.values()),
                    "",
                )
            )
        )
    sums = (total[name] for name in ("passed", "failed", "not counted"))
    lines.append("| ".join(("| all ", *(f"{count} " for count in sums), "")))
    ratio = total["passed"] / max(1, total["passed"] + total["failed"])
    lines += ["", f"{ratio:.1%} of the tests that are counted pass.", ""]
    lines += ["| why tests are not counted | tests |", "| --- | --- |"]
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> None:
    """Run the files, and print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path, help="a checkout of plangym")
    parser.add_argument("-n", dest="workers", type=int, default=0, help="as in pytest-xdist")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument(
        "--json", type=Path, help="the file of results; results of other test files are kept"
    )
    parser.add_argument(
        "--again", action="store_true", help="run only what failed according to the file of results"
    )
    parser.add_argument("--failures", action="store_true", help="print how each test failed")
    options = parser.parse_args()
    sources = options.sources.resolve()
    files: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        files = json.loads(options.json.read_text(encoding="utf-8"))
    for path in sorted((sources / "tests").rglob("test_*.py")):
        if options.only not in path.name:
            continue
        file = path.relative_to(sources).as_posix()
        again = files[file]["failed"] if options.again and file in files else []
        if options.again and not again:
            continue
        with tempfile.TemporaryDirectory() as name:
            copy_tests(sources, Path(name))
            found = run_tests(Path(name), file, options.workers, again)
        results = results_of(found)
        if again:
            results["passed"] += files[file]["passed"]
            earlier = Counter[str](files[file]["not counted"])
            results["not counted"] = dict(earlier + Counter[str](results["not counted"]))
        files[file] = results
        print(f"{file}: {files[file]['passed']} passed", *files[file]["failed"], sep="\n  ")
        for test, outcome, message in found:
            if options.failures and outcome == "failed":
                print(f"\n{test}\n{message}")
        sys.stdout.flush()
        if options.json is not None:
            options.json.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
            options.json.with_suffix(".md").write_text(table(files), encoding="utf-8")
    print(f"\n{table(files)}")


if __name__ == "__main__":
    main()
