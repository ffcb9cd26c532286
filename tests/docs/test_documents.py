"""What the documents say is run: their code, their links and their table."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest
from suite import newer_id

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [
    path
    for path in sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
    )
    if path.name != "CHANGELOG.md" and not {"_build", "figures"} & set(path.parts)
]
# The modules that the code of a page needs, and that not every machine has.
NEEDED = {
    "docs/mujoco.md": ["mujoco", "dm_control"],
    "docs/torchrl.md": ["torchrl"],
    "docs/families/box2d.md": ["Box2D"],
    "docs/families/games.md": ["pyspiel", "pettingzoo", "chess"],
    "docs/families/jax.md": ["jax", "pgx"],
    "docs/families/minigrid.md": ["minigrid"],
    "docs/families/retro.md": ["stable_retro"],
}
OURS = ("plangym_like", "tests", "docs", "examples", "benchmarks")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Warnings are errors, except those of SWIG's types, which end a process that imports Box2D, of
# dm_control with NumPy 2.5, and of stable-retro on Python 3.12.
IGNORED = ("builtin type", "Setting the shape on a NumPy array", "Bitwise inversion")
PYTHON = [sys.executable, "-W", "error"]
PYTHON += [part for text in IGNORED for part in ("-W", f"ignore:{text}:DeprecationWarning")]
# torch 2.4 unpickles tensors so.
PYTHON += ["-W", "ignore:You are using `torch.load` with `weights_only=False`:FutureWarning"]
# What a fence prints, right after it.
OUTPUT = re.compile(r"\n+```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Printed after each fence, so that their outputs can be told apart.
END = "\x17"
FILE = re.compile(r"`([\w/]+\.py)`")
LINK = re.compile(r"\]\(([^)#\s]+)")


def _code_of(text: str) -> str:
    """Return the python fences of a document as one script, each line at its number in the text.

    Where a fence ends, the script prints `END`.
    """
    lines = [""] * (text.count("\n") + 1)
    for fence in FENCE.finditer(text):
        first = text.count("\n", 0, fence.start(1))
        code = fence.group(1).splitlines()
        lines[first : first + len(code)] = code
        lines[first + len(code)] = f"print({END!r})"
    return "\n".join(lines)


def _shown_outputs(text: str) -> dict[int, str]:
    """Return what a document says that its fences print, by the number of the fence."""
    shown = {}
    for number, fence in enumerate(FENCE.finditer(text)):
        output = OUTPUT.match(text, fence.end())
        if output:
            shown[number] = output.group(1)
    return shown


def _run(command: list[str], directory: Path, stdin: str = "") -> str:
    """Run ``command`` in ``directory`` and return what it printed.

    Fail with all that it wrote to stderr.
    """
    outcome = subprocess.run(
        command, cwd=directory, input=stdin, capture_output=True, text=True, timeout=600
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


# Imports modules that many pages need. A page then runs in a forked copy, which ends as a program
# does. Only pages that import torch have it: workers import what the program has imported.
HOST = """
import os, runpy, sys
for name in sys.argv[1:]:
    __import__(name)
for line in sys.stdin:
    script = line.rstrip()
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)  # at once: nothing is left to clean up
folder = sys.path[0] = os.path.dirname(script)
os.chdir(folder)
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def run_page() -> Iterator[Callable[[str, Path], str]]:
    """``run_page(code, path)`` writes a script and returns what it printed."""
    hosts: dict[bool, subprocess.Popen[str]] = {}

    def run(code: str, path: Path) -> str:
        path.write_text(code, encoding="utf-8")
        needs_torch = "import torch" in code
        if needs_torch not in hosts:
            modules = ["gymnasium", *["torch", "tensordict"][: 2 * needs_torch]]
            command = [*PYTHON, "-c", HOST, *modules]
            hosts[needs_torch] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        host = hosts[needs_torch]
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(f"{path}\n")
        host.stdin.flush()
        status = host.stdout.readline()
        assert status == "0\n", (path.parent / "stderr").read_text(encoding="utf-8")
        return (path.parent / "stdout").read_text(encoding="utf-8")

    yield run
    for host in hosts.values():
        host.communicate(timeout=600)


def _assert_prints_what_is_shown(text: str, printed: str) -> None:
    shown, parts = _shown_outputs(text), printed.split(f"{END}\n")
    assert {number: parts[number] for number in shown} == shown


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


WITH_CODE = [path for path in DOCUMENTS if FENCE.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("document", [d for d in WITH_CODE if d != README], ids=_name)
def test_every_fence_runs_as_an_unguarded_script(
    document: Path, tmp_path: Path, run_page: Callable[[str, Path], str]
) -> None:
    for module in NEEDED.get(_name(document), []):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    text = document.read_text(encoding="utf-8")
    if name := newer_id(text):
        pytest.skip(f"Gymnasium {gymnasium.__version__} has no {name}")
    _assert_prints_what_is_shown(text, run_page(_code_of(text), tmp_path / document.name))


def test_the_readme_runs_as_a_session(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    _assert_prints_what_is_shown(text, _run([*PYTHON, "-"], tmp_path, stdin=_code_of(text)))


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    text = "```python\nprint(1)\n```\n\n```python\nprint(2)\n```\n\n```output\n3\n```\n"
    printed = _run([sys.executable, "-c", _code_of(text)], tmp_path).split(f"{END}\n")
    assert _shown_outputs(text) == {1: "3\n"} and printed == ["1\n", "2\n", ""]


def test_every_output_that_is_shown_belongs_to_a_fence() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert text.count("```output\n") == len(_shown_outputs(text)), _name(document)


def test_every_page_that_needs_a_module_exists() -> None:
    assert [name for name in NEEDED if ROOT / name not in WITH_CODE] == []


def test_a_failing_fence_is_named_by_file_and_line(
    tmp_path: Path, run_page: Callable[[str, Path], str]
) -> None:
    text = "# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```\n"
    with pytest.raises(AssertionError, match=r'page\.md", line 10'):
        run_page(_code_of(text), tmp_path / "page.md")


def test_every_local_link_leads_somewhere() -> None:
    missing = []
    for document in DOCUMENTS:
        targets = LINK.findall(document.read_text(encoding="utf-8"))
        local = [target for target in targets if "://" not in target]
        missing += [(_name(document), to) for to in local if not (document.parent / to).exists()]
    assert missing == []


def test_every_file_that_is_named_exists() -> None:
    there = {f"/{_name(path)}" for top in OURS for path in (ROOT / top).rglob("*.py")}
    missing = []
    for document in DOCUMENTS:
        named = FILE.findall(document.read_text(encoding="utf-8"))
        absent = [one for one in named if not any(path.endswith(f"/{one}") for path in there)]
        missing += [(_name(document), one) for one in absent]
    assert missing == []


@pytest.mark.parametrize(
    "words", ["deepcopy", "copy an environment", "restore", "reset to a state"]
)
def test_what_people_search_for_is_in_a_heading(words: str) -> None:
    """The search of the site lists pages with the words in a heading first."""
    text = (ROOT / "docs/restore.md").read_text(encoding="utf-8").lower()
    assert any(words in line for line in text.splitlines() if line.startswith("#"))
