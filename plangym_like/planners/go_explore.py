"""Go-Explore: remember every place that was reached, return to one, and explore from there."""

from __future__ import annotations

from collections import deque
from copy import copy

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import ActionSampler
from plangym_like.planners.cell_archive import CellArchive, CellOf, Walks, as_column
from plangym_like.planners.cells import ObservationCells
from plangym_like.planners.lineage import ROOT, BestNode, Lineage
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Planner
from plangym_like.planners.screen_cells import DynamicScreenCells, ScreenCells, packed
from plangym_like.planners.search import Search
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number


class GoExplore(Planner):
    """Keep an archive of cells, and explore from the cells that were seen least.

    Phase 1 of A. Ecoffet, J. Huizinga, J. Lehman, K. O. Stanley and J. Clune, "First return, then
    explore", Nature 590, 2021 (arXiv:2004.12919), which returns to a cell by restoring its state:

    1. Draw cells with probabilities proportional to ``1 / sqrt(seen + 1)`` (Methods).
    2. From each cell, take `steps` random actions. Each action repeats the previous one with
       probability `repeat`.
    3. Put each state into the archive if its cell is new, if its score is higher than at the best
       earlier visit, or if it has the same score after fewer frames. The cell then counts as not
       seen.

    Differences from the paper: `batch` cells are explored at the same time. An exploration ends
    when a life is lost. A cell counts as seen whenever an exploration enters it and finds nothing
    better. The paper's additional weights for Montezuma's Revenge, by neighbours, keys and levels,
    are left out.

    An episode counts as a plan if it has ended or has a score greater than 0. If no episode counts,
    the plan leads to the cell that was found last.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box.
    cell_of : callable, optional
        ``cell_of(obs, infos)`` takes N observations and their `BatchInfo`, and returns a list of N
        hashable objects, the cell of each row. A row whose cell is ``None`` is not kept, and its
        exploration ends. `position_cells` is the function for Montezuma's Revenge. The default is
        `DynamicScreenCells` for screens, and `ObservationCells` for at most 8 numbers.
    batch : int
        The number of cells that are explored at the same time.
    steps : int
        The length of an exploration, in actions.
    repeat : float
        The probability that an action repeats the previous one.
    dt : int
        How long each action is held.

    Raises
    ------
    InputError
        `cell_of` is missing and there are no default cells for the observations, or an option is
        invalid.

    Notes
    -----
    ``Plan.info["cells"]`` holds a `Visit` for each cell.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("MountainCar-v0")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = GoExplore(env).plan(state, budget=50_000, seed=0)
    >>> plan.ended, len(plan.info["cells"]) > 100
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        cell_of: CellOf | None = None,
        batch: int = 64,
        steps: int = 100,
        repeat: float = 0.95,
        dt: int = 1,
    ) -> None:
        super().__init__(env)
        self.batch, self.steps = as_count("batch", batch), as_count("steps", steps)
        self.dt = as_count("dt", dt)
        self.repeat = as_number("repeat", repeat, 0.0, 1.0)
        self._sample = ActionSampler(env, self.name)
        space = env.observation_space
        if cell_of is None:
            is_screen = ScreenCells.takes(space)
            cell_of = DynamicScreenCells() if is_screen else ObservationCells(space)
        elif not callable(cell_of):
            raise InputError(f"cell_of must be a function of obs and infos, got {cell_of!r}")
        elif isinstance(cell_of, ScreenCells) and not cell_of.takes(space):
            raise InputError(f"{type(cell_of).__name__} needs screens, got observations of {space}")
        self.cell_of: CellOf = cell_of

    def _search(self, state: Row, search: Search) -> Plan:
        archive, lineage, best = CellArchive(state), Lineage(self.env), BestNode()
        batch = search.fit(self.batch)
        dynamic = self.cell_of if isinstance(self.cell_of, DynamicScreenCells) else None
        dynamic = copy(dynamic)  # each search begins with the same representation
        cell_of, recent, due = dynamic or self.cell_of, deque[bytes](), 0
        if dynamic is not None:
            recent, due = deque(maxlen=dynamic.sample), dynamic.every
        rng, space = search.rng, self.env.observation_space
        while search.has(batch):
            if dynamic is not None and len(lineage) >= due:
                archive.refit(dynamic, recent, space, rng)
                due = len(lineage) + dynamic.every
            walks = archive.choose(batch, self._sample(rng, batch), rng)
            for index in range(self.steps):
                count = len(walks.nodes)
                if not count or not search.has(count):
                    break
                actions = self._sample(rng, count)
                kept = rng.random(count) < (self.repeat if index else 1.0)
                actions[kept] = walks.actions[kept]
                step = search.step_batch(actions, walks.states, self.dt)
                cells = _cells(step, cell_of)
                over = step.terminateds | step.truncateds
                has_lives = step.infos.mask("lives").all()
                after = Walks(
                    step.states,
                    walks.scores + step.rewards,
                    walks.frames + step.infos["n_step"],
                    step.infos["lives"].astype(np.float64) if has_lives else walks.lives,
                    lineage.add(walks.nodes, actions, self.dt, step.rewards),
                    actions,
                    cells,
                )
                best.update(after.nodes, after.scores, over)
                lost = (
                    over | (after.lives < walks.lives) | np.array([cell is None for cell in cells])
                )
                alive = np.flatnonzero(~lost)
                screens = None if dynamic is None else step.obs
                archive.add(walks, after, alive, search.spent(), screens)
                if screens is not None:
                    recent.append(packed(screens[rng.integers(count)]))
                walks = after.take(alive)
            search.report(best.score, f"{len(archive):,} cells")
        node = archive.newest() if best.node == ROOT else best.node
        taken, dt, rewards = lineage.path(node)
        visits = archive.visits()
        return search.plan(state, taken, rewards, dt, ended=best.ended, cells=visits)


def _cells(step: BatchTransition, cell_of: CellOf) -> NDArray[np.object_]:
    """Return the cell of each row of a batch, ``(N,)``."""
    found = cell_of(step.obs, step.infos)
    try:
        for cell in found:
            hash(cell)
        count = len(found)
    except TypeError as error:
        raise InputError(
            "cell_of must return a list of hashable objects, one for each row, such as "
            f"[tuple(row) for row in obs.tolist()]; got {found!r}"
        ) from error
    if count != len(step.rewards):
        raise InputError(f"cell_of returned {count} cells for {len(step.rewards)} rows")
    return as_column(found)
