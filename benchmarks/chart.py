"""The bar chart of the docs, drawn from the figures in the JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GROUPS = {
    "ours": ("plangym_like", "#1668b8"),
    "states": ("steps from given states too", "#d9822b"),
    "raw": ("bare simulator loops", "#4a4f57"),
    "forward": ("can only step forward", "#b9c0ca"),
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the chart of ``results`` as a PNG; a panel for each job."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(3, 1, figsize=(7.5, 11), layout="constrained")
    for panel, task in zip(panels, results["throughput"], strict=True):
        _bars(panel, task)
    handles = [Rectangle((0, 0), 1, 1, color=color) for _, color in GROUPS.values()]
    labels = [label for label, _ in GROUPS.values()]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    machine = results["machine"]
    where = f"{machine['cores']} cores ({machine['cpu']})"
    figure.suptitle(f"Transitions per second on {where}, one interleaved run")
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def best_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the fastest row of each contender that was opened in several ways, fastest first."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["rate"] is None:
            continue
        # Serial and parallel of ours, one loop and many, are shown each; of a rival, its best.
        name = row["key"] if row["group"] in ("ours", "raw") else row["key"].partition("_")[0]
        if name not in found or row["rate"] > found[name]["rate"]:
            found[name] = row
    return sorted(found.values(), key=lambda row: row["rate"], reverse=True)


def _bars(axes: Any, task: Mapping[str, Any]) -> None:
    rows = best_rows(task["rows"])
    axes.set_title(task["title"], loc="left", fontsize=10)
    rates = [row["rate"] for row in rows]
    positions = range(len(rows))
    axes.barh(positions, rates, color=[GROUPS[row["group"]][1] for row in rows], height=0.7)
    axes.set_yticks(positions, [row["label"] for row in rows])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    for position, rate in zip(positions, rates, strict=True):
        axes.annotate(
            f"{rate:,}", (rate, position), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_xlabel("transitions/s")
    if max(rates) > 100 * min(rates):
        axes.set_xscale("log")
        axes.set_xlim(min(rates) / 3, max(rates) * 8)
        axes.set_xlabel("transitions/s, logarithmic")
    else:
        axes.set_xlim(0, max(rates) * 1.18)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
