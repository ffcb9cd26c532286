"""What the documents say is run: their code, their links and their table."""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
    if path.name != "CHANGELOG.md"
]
OURS = ("plangym_like", "tests", "docs", "examples", "benchmarks")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w/]+\.py)`")
LINK = re.compile(r"\]\(([^)#\s]+)")


def _code_of(text: str) -> str:
    """Return the python fences of a document as one script, each line at its number in the text."""
    lines = [""] * (text.count("\n") + 1)
    for fence in FENCE.finditer(text):
        first = text.count("\n", 0, fence.start(1))
        code = fence.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def _run(command: list[str], directory: Path, stdin: str = "") -> None:
    """Run ``command`` in ``directory`` and fail with all that it wrote to stderr."""
    outcome = subprocess.run(
        command, cwd=directory, input=stdin, capture_output=True, text=True, timeout=600
    )
    assert outcome.returncode == 0, outcome.stderr


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_CODE = [path for path in DOCUMENTS if FENCE.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("document", WITH_CODE, ids=_name)
def test_every_fence_runs_as_an_unguarded_script(document: Path, tmp_path: Path) -> None:
    if document.name == "torchrl.md" and importlib.util.find_spec("torchrl") is None:
        pytest.skip("torchrl is not installed")
    script = tmp_path / document.name
    script.write_text(_code_of(document.read_text(encoding="utf-8")), encoding="utf-8")
    _run([sys.executable, "-W", "error", str(script)], tmp_path)


def test_the_readme_session_runs_from_stdin(tmp_path: Path) -> None:
    code = _code_of((ROOT / "README.md").read_text(encoding="utf-8"))
    _run([sys.executable, "-W", "error", "-"], tmp_path, stdin=code)


def test_a_failing_fence_is_named_by_file_and_line(tmp_path: Path) -> None:
    text = "# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```\n"
    script = tmp_path / "page.md"
    script.write_text(_code_of(text), encoding="utf-8")
    with pytest.raises(AssertionError, match=r'page\.md", line 10'):
        _run([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_local_link_leads_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_file_that_is_named_exists(document: Path) -> None:
    named = FILE.findall(document.read_text(encoding="utf-8"))
    there = {f"/{_name(path)}" for top in OURS for path in (ROOT / top).rglob("*.py")}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


COPIES = runpy.run_path(str(ROOT / "docs" / "copy_table.py"))


@pytest.mark.parametrize(("page", "table", "name"), COPIES["PLACES"])
def test_the_tables_in_pages_are_the_measured_ones(page: str, table: str, name: str) -> None:
    measured = (ROOT / "docs" / "figures" / table).read_text(encoding="utf-8")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert COPIES["with_table"](text, measured, name) == text
