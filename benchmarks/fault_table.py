"""Inject the same faults into this package and its rivals, each in a new process.

Writes ``docs/figures/faults.json`` and the table ``docs/figures/faults.md``; earlier results of
libraries that are not selected are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
START_LIMIT, LIMIT = 120.0, 12.0
VERSIONS = ("plangym", "gymnasium", "stable_baselines3", "envpool", "numpy")


def measure(library: str, fault: str) -> dict[str, Any]:
    """Return what became of one library under one fault."""
    # Into a file: orphans would hold a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fault_injection.py")), library, fault],
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        in_time = True
        try:
            wait_until_ready(process, output)
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read().splitlines()
    if not in_time:
        what = said[-1].partition("|")[2] if "|" in said[-1] else "no answer"
        return {"fine": False, "what": f"{what} within {LIMIT:.0f} s"}
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return {"fine": False, "what": f"the whole program died ({name})"}
    if not said or "|" not in said[-1]:
        return {"fine": False, "what": "the whole program ended without a word"}
    fine, _, what = said[-1].partition("|")
    return {"fine": fine == "1", "what": what}


def wait_until_ready(process: subprocess.Popen[bytes], output: Any) -> None:
    """Wait until the library's processes are ready; that may take seconds and is not measured."""
    until = time.monotonic() + START_LIMIT
    while process.poll() is None and os.fstat(output.fileno()).st_size == 0:
        if time.monotonic() > until:
            raise RuntimeError(f"{process.args} is not ready within {START_LIMIT:.0f} s")
        time.sleep(0.05)


def table(results: dict[str, dict[str, Any]], libraries: list[str]) -> str:
    """Return the results as Markdown."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    lines = [
        f"Measured with `make fault-table`; {versions}.",
        "✅: as one would wish; ❌: not, n/a: cannot be done to it.",
        "",
        f"| fault | {' | '.join(libraries)} |",
        "| --- " * (1 + len(libraries)) + "|",
    ]
    for fault, cells in results.items():
        told = [
            f"{mark(cells[name])} {cells[name]['what'].replace('|', '/')}" for name in libraries
        ]
        lines.append(f"| {fault} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def mark(cell: dict[str, Any]) -> str:
    """Return the sign of a cell."""
    if cell["what"].startswith("cannot be done"):
        return "n/a"
    return "✅" if cell["fine"] else "❌"


def main() -> None:
    """Measure every cell and write the table."""
    sys.path.insert(0, str(Path(__file__).parent))
    from fault_injection import DEATHS, FAULTS, LIBRARIES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--out", type=Path, default=FIGURES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "faults.json"
    kept = json.loads(path.read_text("utf-8"))["faults"] if path.exists() else {}
    results: dict[str, dict[str, Any]] = {}
    for fault in (*FAULTS, *DEATHS):
        results[fault] = dict(kept.get(fault, {}))
        for library in arguments.libraries:
            cell = results[fault][library] = measure(library, fault)
            print(
                f"{'fine' if cell['fine'] else 'bad':4} {library:15} {fault}: {cell['what']}",
                flush=True,
            )
    text = json.dumps({"limit_seconds": LIMIT, "faults": results}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    told = [name for name in LIBRARIES if all(name in cells for cells in results.values())]
    (arguments.out / "faults.md").write_text(table(results, told), encoding="utf-8")


if __name__ == "__main__":
    main()
