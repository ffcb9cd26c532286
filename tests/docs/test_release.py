"""What is published with a release: the figures of README.md, and what each extra is for."""

from __future__ import annotations

import configparser
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from usual import first_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def release(benchmark: Any) -> Any:
    return benchmark("release_check")


@pytest.fixture
def extras() -> configparser.SectionProxy:
    return _setup()["options.extras_require"]


def _setup() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_the_oldest_versions_are_those_that_are_installed_for_their_tests(
    release: Any, extras: Any
) -> None:
    texts = [_setup()["options"]["install_requires"]]
    # Those of torchrl and jax say in setup.cfg what they were tried with.
    texts += [extras[name] for name in {*release.CODE} - {"", "all", "torchrl", "jax"}]
    lines = [line for text in texts for line in text.splitlines() if line and line[0] != "#"]
    oldest: dict[str, list[Version]] = {}
    for requirement in map(Requirement, lines):
        bounds = [each for each in requirement.specifier if each.operator in (">=", "==")]
        assert len(bounds) == 1, requirement
        oldest.setdefault(canonicalize_name(requirement.name), []).append(
            Version(bounds[0].version)
        )
    pins = (ROOT / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(name): Version(version)
        for name, _, version in (line.partition("==") for line in pins if line[0] != "#")
    }
    assert {name: max(versions) for name, versions in oldest.items()} == {
        name: version for name, version in pinned.items() if name in oldest
    }


def test_interpreters_and_releases_that_are_refused(extras: Any) -> None:
    interpreters = SpecifierSet(_setup()["options"]["python_requires"])
    versions = ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert list(interpreters.filter(versions)) == versions[1:]
    for name in ("mujoco", "dm-control"):
        [mujoco] = [line for line in extras[name].splitlines() if line.startswith("mujoco ")]
        # It computes wrong accelerations.
        assert "4.0.0" not in Requirement(mujoco).specifier


def test_every_extra_is_tried(release: Any, extras: Any) -> None:
    assert {"", *extras} - release.NOT_TRIED == {*release.CODE}


def test_the_readme_and_every_tutorial_are_tried_from_the_wheel(release: Any) -> None:
    tried = {page for pages in release.PAGES.values() for page in pages}
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    tutorials = re.search(r":caption: Tutorials\n\n(.*?)```", index, re.DOTALL)
    assert tutorials is not None
    assert tried == {"README.md", *(f"docs/{name}.md" for name in tutorials[1].split())}
    for page in tried:
        compile(release.code_of(page), page, "exec")
        assert "plangym_like.make" in release.code_of(page)


@pytest.mark.parametrize(
    "extra", first_of(["", "classic-control", "archive", "viz", "torch"], usual=4)
)
def test_what_an_extra_is_for_runs(release: Any, extra: str) -> None:
    exec(release.CODE[extra], {})


def _ratio(ours: list[float], others: list[list[float]]) -> float:
    """Return the median ratio to the best of the others."""
    return min(
        statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) for theirs in others
    )


def _over_best(rows: list[dict[str, Any]], name: str) -> float:
    """Return our rate with two workers over that of the best contender called `name`."""
    (ours,) = (row["rates"] for row in rows if row["label"] == "plangym_like, 2 workers")
    return _ratio(ours, [row["rates"] for row in rows if row["label"].startswith(name)])


def test_the_figures_of_the_readme_are_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    bench = json.loads((ROOT / "docs/figures/bench.json").read_text(encoding="utf-8"))
    robots = json.loads((ROOT / "docs/figures/mujoco.json").read_text(encoding="utf-8"))
    jobs = {job["key"]: job["rows"] for job in (*bench["throughput"], *robots["tasks"])}
    for name, key, told in (
        ("Ms. Pac-Man with images", "mspacman_rgb", "{:.1f} times plangym's best"),
        ("Ms. Pac-Man's memory", "mspacman_ram", "{:.1f} times plangym's best"),
        ("CartPole", "cartpole", "{:.0f} times plangym's best"),
        ("HalfCheetah", "HalfCheetah", "{:.1f} times plangym's best"),
    ):
        (line,) = (line for line in readme.splitlines() if line.startswith(f"| {name}, "))
        (rate,) = (row["rate"] for row in jobs[key] if row["label"] == "plangym_like, 2 workers")
        assert f"{rate:,}" in line
        assert told.format(_over_best(jobs[key], "plangym, ")) in line
    assert f"{_over_best(jobs['cartpole'], 'EnvPool'):.0f} times EnvPool's" in readme
