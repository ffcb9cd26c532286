"""Parallel against serial, from one row a batch to many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interleave import Contest, Entry, paired_ratio
from throughput import CART_POLE, CORES, MS_PACMAN

SIZES = (1, 2, 4, 8, 16, 64, 256)
# From so many rows on, a batch may take longer than a short slice.
LARGE = 64
# A ratio below this is measured in twice as many further rounds: small batches are noisy.
NEAR = 0.98
GAMES: dict[str, dict[str, Any]] = {
    "cartpole": {"env_id": CART_POLE, "obs_type": None, "count": max(SIZES)},
    "mspacman_ram": {"env_id": MS_PACMAN, "obs_type": "ram", "count": max(SIZES)},
    "mspacman_rgb": {"env_id": MS_PACMAN, "obs_type": "rgb", "count": max(SIZES)},
}
Ratios = dict[str, dict[str, dict[int, float] | None]]


def measure(
    *,
    rounds: int,
    seconds: float,
    interpreters: Mapping[str, str],
    versions: dict[str, dict[str, str]],
) -> Ratios:
    """Return, by library, game and batch size, the parallel rate divided by the serial one.

    A game is ``None`` where a library could not take part.
    """
    found: Ratios = {"ours": {}, "plangym": {}}
    for library, games in found.items():
        pair = [
            Entry("serial", "serial", library, library, {"n_workers": None}),
            Entry("parallel", "parallel", library, library, {"n_workers": CORES}),
        ]
        for game, job in GAMES.items():
            games[game] = {}
            with Contest(pair, job, interpreters=interpreters, versions=versions) as contest:
                # Not counted: workers are still starting (`first_second.py` measures that).
                contest.run(rounds=rounds, seconds=seconds, count=1)
                for size in SIZES:
                    # A slice holds several batches.
                    slice_seconds = seconds * (4 if size >= LARGE else 1)
                    for figure in contest.figures.values():
                        figure.rates.clear()
                    contest.run(
                        # A rival's row is for comparison, it needs no fine ruler.
                        rounds=rounds if library == "ours" else max(3, rounds // 4),
                        seconds=slice_seconds,
                        count=size,
                    )
                    figures = contest.figures
                    ratio = paired_ratio(figures["parallel"], figures["serial"])
                    if library == "ours" and ratio is not None and ratio < NEAR:
                        # The median of all rounds counts, those above included.
                        contest.run(rounds=2 * rounds, seconds=slice_seconds, count=size)
                        ratio = paired_ratio(figures["parallel"], figures["serial"])
                    if ratio is None:
                        games[game] = None
                        break
                    games[game][size] = round(ratio, 3)  # type: ignore[index]
    return found
