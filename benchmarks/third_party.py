"""Check the environments of other packages, and write the table of what was found.

    python benchmarks/third_party.py                     # all packages of its list, as installed
    python benchmarks/third_party.py --only 'highway'    # packages that match

Each id is checked in a process of its own (``python -m plangym_like check``), with 16 states for 20
steps on one to three workers. Outcomes:

- exact: every check passed;
- approximate: made, with ``env.exactness == "approximate"`` and a note;
- refused: ``make`` raised an error that says why;
- noticed: an error was raised in use, before or instead of a wrong row;
- silently wrong: a row differed, without an error or a note.

An id that Gymnasium itself cannot make or step is listed with its error. Results are kept in
``docs/figures/third_party.json``; ``docs/figures/third_party.md`` is written from all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import support_table
from harness import known, parser, publish, table

# What has to be imported so that a package registers its environments.
MODULES = (
    *("mo_gymnasium", "gym_pusht", "highway_env", "popgym.envs", "minatar.gym", "panda_gym"),
    *("rware", "minigrid", "flappy_bird_gymnasium", "gym_anytrading", "tetris_gymnasium.envs"),
    *("gymnasium_robotics", "metaworld", "vizdoom.gymnasium_wrapper", "nle", "bluesky_gym"),
    *("pybullet_envs_gymnasium", "gym_electric_motor", "gym_simplegrid", "gymnasium_2048"),
    *("gymnasium_sudoku", "mobile_env", "myosuite", "arcle", "boing_gym", "buffalo_gym"),
    *("crosswalk_env", "envpack", "glucosim.envs", "gym_aloha", "gym_bullet_chess"),
    *("gym_classics2", "gym_invmgmt", "gym_platform", "gym_sailing", "gymtonic"),
    *("gymnasium_cartpole_swingup", "gymnasium_mars_lander", "gymnasium_snake_game"),
    *("kaist_or_gym", "lettuce_greenhouse_gym", "memory_gym", "multi_level_maze", "nasim"),
    *("neurogym", "numberlink", "oncosim.envs", "or_gymnasium", "pgtg", "pickomino_env"),
    *("sepsisim.envs", "space_mining", "stokasta"),
)
OUTCOMES = ("exact", "approximate", "refused", "noticed", "silently wrong")
EACH, TIMEOUT, _LONGEST = 4, 120.0, 160
# Errors of this package; others are those of the environment.
_OURS = ("SnapshotError", "InputError", "EnvApiError", "StateError", "ObservationError")


def ids_of(module: str) -> Iterator[tuple[str, str]]:
    """Yield package and id of a few of the environments that `module` registers."""
    before = set(gymnasium.registry)
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        print(f"{module}: {error!r}", file=sys.stderr)
        return
    with contextlib.suppress(Exception):
        imported.register_envs()
    new = sorted(set(gymnasium.registry) - before)
    for index in range(min(EACH, len(new))):
        yield module.partition(".")[0], f"{module}:{new[index * len(new) // min(EACH, len(new))]}"


def judged(report: dict[str, Any]) -> dict[str, str]:
    """Return the outcome that a report of a check means, and what was said."""
    said = without_folders(report.get("reason", ""))
    if report["ok"]:
        exact = report["exactness"] == "exact"
        return {"outcome": report["exactness"], "said": "" if exact else report["exactness_note"]}
    if "error" in report:
        return {
            "outcome": "refused" if said.startswith(_OURS) else "not with Gymnasium",
            "said": said,
        }
    if "failed" in report:
        raised = all("Error: " in each["detail"] for each in report["failed"])
        return {"outcome": "noticed" if raised else "silently wrong", "said": said}
    return {"outcome": "failed", "said": said}


def without_folders(said: str) -> str:
    """Return `said` with paths that begin at the folder of the installed packages.

    >>> without_folders('no file "/tmp/mine/lib/python3.11/site-packages/doom/doom.wad"')
    'no file "site-packages/doom/doom.wad"'
    """
    return re.sub(r"/[^\s\"']*/(?=site-packages/)", "", said)


def version(package: str) -> str:
    """Return the version of the distribution that the module `package` comes from."""
    names = importlib.metadata.packages_distributions().get(package, [package])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        return importlib.metadata.version(names[0])
    return "?"


def page(reports: dict[str, dict[str, Any]]) -> str:
    """Return the tables of all reports."""
    counts: dict[str, Counter[str]] = {}
    told: dict[tuple[str, str, str], list[str]] = {}
    for name, report in sorted(reports.items()):
        package = f"{report['package']} {report['version']}"
        counts.setdefault(package, Counter())[report["outcome"]] += 1
        if report["said"]:
            said = " ".join(report["said"].split()).replace("|", "/")
            said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
            told.setdefault((package, report["outcome"], said), []).append(name)
    rows = []
    for package, found in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        other = found.total() - sum(found[outcome] for outcome in OUTCOMES)
        rows.append((package, *(found[outcome] or "" for outcome in OUTCOMES), other or ""))
    what = []
    for (package, outcome, said), names in sorted(told.items()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown = ", ".join(f"`{name}`" for name in names[:3])
        what.append((f"{shown}{more}", f"{package}: {outcome}", said))
    first = table(("package", *OUTCOMES, "not tried"), rows)
    return "\n".join([*first, *table(("environments", "outcome", "what was said"), what)])


def main() -> int:
    """Check, keep, write; the status is 1 if anything is silently wrong."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="a regular expression for modules")
    chosen = options.parse_args()
    os.environ |= {"SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}
    warnings.simplefilter("ignore")
    reports, wrong = known("third_party"), 0
    for module in MODULES:
        if not re.search(chosen.only, module):
            continue
        for package, name in ids_of(module):
            found = judged(support_table.check(name, timeout=TIMEOUT))
            reports[name.partition(":")[2]] = {
                "package": package,
                "version": version(package),
                **found,
            }
            wrong += found["outcome"] == "silently wrong"
            print(f"{name}: {found['outcome']}  {found['said'][:140]}", flush=True)
            if not chosen.quick:
                publish("third_party", dict(sorted(reports.items())), page(reports))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
