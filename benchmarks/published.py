"""Write ``docs/figures/published.json``: published scores, each with its source and its budget.

    python benchmarks/published.py

The numbers were copied from the files that `SOURCES` names, not from memory. What could not be
looked up is left out.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures" / "published.json"
WIDTH = "https://github.com/bonetblai/rollout-iw, aaai18-paper/"
PIXELS = WIDTH + "Thu_Nov__9_18.47.14_UTC_2017.discount=1.00/table2b.txt"
TDMPC2 = "https://github.com/nicklashansen/tdmpc2, results/"
TIANSHOU = "https://github.com/thu-ml/tianshou, examples/mujoco/README.md"

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
    "BrFS": {
        "what": "breadth-first search, M. Bellemare et al., JAIR 47, 2013",
        "budget": "150,000 frames an action (of 5 frames)",
        "source": WIDTH + "table_iw.csv; budget: README.md of "
        "https://github.com/miquelramirez/ALE-Atari-Width",
    },
    "UCT 2013": {
        "what": "UCT, M. Bellemare et al., JAIR 47, 2013",
        "budget": "as BrFS",
        "source": WIDTH + "table_iw.csv",
    },
    "IW(1) 2015": {
        "what": "IW(1) on the RAM, N. Lipovetzky et al., IJCAI 2015",
        "budget": "as BrFS",
        "source": WIDTH + "table_iw.csv",
    },
    "Rollout-IW 0.5 s": {
        "what": "Rollout-IW(1) on the screen, variant NS+RA, W. Bandres et al., AAAI 2018",
        "budget": "0.5 seconds an action (of 15 frames)",
        "source": PIXELS + ", column roll.110.15.5s",
    },
    "Rollout-IW 32 s": {
        "what": "the same",
        "budget": "32 seconds an action (of 15 frames)",
        "source": PIXELS + ", column roll.110.15.32s",
    },
    "Fractal AI 2018": {
        "what": "Fractal Monte Carlo, S. Hernandez Cerezo and G. Duran-Ballester, 2018",
        "budget": "not stated with the table",
        "source": "https://github.com/FragileTech/FractalAI, README.md",
    },
    "Go-Explore": {
        "what": "A. Ecoffet et al., 2019, without domain knowledge: the mean of policies learned "
        "from its plans",
        "budget": "not stated in the abstract",
        "source": "https://arxiv.org/abs/1901.10995, abstract: over 43k",
    },
}

COLUMNS: tuple[str, ...] = ("random", "human", "BrFS", "UCT 2013", "IW(1) 2015", "Rollout-IW 0.5 s")
COLUMNS += ("Rollout-IW 32 s", "Fractal AI 2018", "Go-Explore")
# None: the source has no number.
ATARI: dict[str, tuple[float | None, ...]] = {
    "Alien": (227.8, 6875, 784, 7785, 25634, 8550, 19354, 479940, None),
    "Asterix": (210, 8503, 2136, 290700, 153400, 48700, 87600, 999500, None),
    "BankHeist": (14.2, 734.4, 22, 498, 717, 268, 2179, 3139, None),
    "BeamRider": (363.9, 5775, 694, 6625, 9108, 3729.2, 4921.2, 999999, None),
    "Boxing": (0.1, 4.3, 100, 100, 100, 78.6, 80.2, 100, None),
    "Breakout": (1.7, 31.8, 1, 364, 384, 79.8, 370, 864, None),
    "Freeway": (0, 29.6, 0, 0, 31, 3.6, 10, 33, None),
    "Frostbite": (65.2, 4335, 137, 271, 902, 1494, 5970, 999960, None),
    "MontezumaRevenge": (0, 4367, 0, 0, 0, 100, 1080, 5600, 43000),
    "MsPacman": (307.3, 15693, 1709, 22336, 21695, 13746.8, 21833, 999990, None),
    "Pong": (-20.7, 9.3, -21, 21, 21, -1.4, 18.2, 21, None),
    "Qbert": (163.9, 13455, 133, 17343, 3705, 14160, 40350, 999975, None),
    "Seaquest": (68.4, 20182, 288, 5132, 14272, 1236, 9846, 999999, None),
    "SpaceInvaders": (148, 1652, 112, 2718, 2877, 1812, 4362, 17970, None),
}

CONTROL_SOURCES: dict[str, dict[str, str]] = {
    "SAC": {
        "what": "soft actor-critic, a policy that was learned",
        "budget": "1,000,000 steps of learning",
        "source": f"dm_control: {TDMPC2}sac/, mean of 3 seeds at step 1,000,000; Gymnasium: "
        f"{TIANSHOU}, best mean of 10 seeds within 1,000,000 steps, on version 3 of the robots",
    },
    "TD-MPC2": {
        "what": "N. Hansen et al., ICLR 2024: MPPI in a model that was learned",
        "budget": "1,000,000 steps of learning",
        "source": f"{TDMPC2}tdmpc2/, mean of 3 seeds at step 1,000,000",
    },
    "TD3": {
        "what": "a policy that was learned",
        "budget": "1,000,000 steps of learning",
        "source": f"{TIANSHOU}, as for SAC",
    },
}
CONTROL_COLUMNS = ("SAC", "TD-MPC2", "TD3")
CONTROL: dict[str, tuple[float | None, ...]] = {
    "HalfCheetah-v5": (12138.8, None, 10201.2),
    "Swimmer-v5": (44.4, None, 104.2),
    "walker-walk": (957.3, 979.7, None),
    "cartpole-swingup": (838.7, 875.9, None),
    "cheetah-run": (730.1, 844.4, None),
    "reacher-easy": (913.9, 982.7, None),
    "finger-spin": (878.1, 985.7, None),
    "ball_in_cup-catch": (978.4, 985.8, None),
}


def published() -> dict[str, Any]:
    """Return sources, and the numbers by task and column."""

    def table(columns: tuple[str, ...], rows: dict[str, tuple[float | None, ...]]) -> Any:
        return {
            name: {c: v for c, v in zip(columns, row, strict=True) if v is not None}
            for name, row in rows.items()
        }

    return {
        "atari": {"sources": SOURCES, "scores": table(COLUMNS, ATARI)},
        "control": {"sources": CONTROL_SOURCES, "scores": table(CONTROL_COLUMNS, CONTROL)},
    }


if __name__ == "__main__":
    PAGE.write_text(json.dumps(published(), indent=1) + "\n")
    print(f"wrote {PAGE}")
