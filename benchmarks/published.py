"""Write ``docs/figures/published.json``: published scores, each with its source and its budget.

    python benchmarks/published.py

The numbers were copied from the files that `SOURCES` names, not from memory.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures" / "published.json"
WIDTH = "https://github.com/bonetblai/rollout-iw, aaai18-paper/"
PIXELS = WIDTH + "Thu_Nov__9_18.47.14_UTC_2017.discount=1.00/table2b.txt"

# Column, what it is, what it could spend, and where the numbers are.
SOURCES: dict[str, dict[str, str]] = {
    "random": {
        "what": "uniform random actions, V. Mnih et al., Nature 518, 2015",
        "budget": "none",
        "source": WIDTH + "table5.csv, column random.score",
    },
    "human": {
        "what": "a human tester, V. Mnih et al., Nature 518, 2015",
        "budget": "none",
        "source": WIDTH + "table5.csv, column human.score",
    },
    "UCT 2013": {
        "what": "UCT, M. Bellemare et al., JAIR 47, 2013",
        "budget": "150,000 frames an action (of 5 frames)",
        "source": WIDTH + "table_iw.csv; budget: README.md of "
        "https://github.com/miquelramirez/ALE-Atari-Width",
    },
    "Rollout-IW": {
        "what": "Rollout-IW(1) on the screen, variant NS+RA, W. Bandres et al., AAAI 2018",
        "budget": "0.5 seconds an action (of 15 frames); this was 937 to 2,321 frames on average, "
        "from data10.csv in the same folder",
        "source": PIXELS + ", column roll.110.15.5s",
    },
}

COLUMNS = ("random", "human", "UCT 2013", "Rollout-IW")
ATARI: dict[str, tuple[float, ...]] = {
    "Alien": (227.8, 6875, 7785, 8550),
    "Asterix": (210, 8503, 290700, 48700),
    "BankHeist": (14.2, 734.4, 498, 268),
    "Boxing": (0.1, 4.3, 100, 78.6),
    "Breakout": (1.7, 31.8, 364, 79.8),
    "Freeway": (0, 29.6, 0, 3.6),
    "MsPacman": (307.3, 15693, 22336, 13746.8),
    "Qbert": (163.9, 13455, 17343, 14160),
    "Seaquest": (68.4, 20182, 5132, 1236),
    "SpaceInvaders": (148, 1652, 2718, 1812),
}


def published() -> dict[str, Any]:
    """Return sources, and the scores by game and column."""
    scores = {game: dict(zip(COLUMNS, row, strict=True)) for game, row in ATARI.items()}
    return {"sources": SOURCES, "scores": scores}


if __name__ == "__main__":
    PAGE.write_text(json.dumps(published(), indent=1) + "\n")
    print(f"wrote {PAGE}")
