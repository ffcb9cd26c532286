"""Go-Explore: remember every place that was reached, return to one, and explore from there."""

from __future__ import annotations

import copy
import zlib
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import ActionSampler
from plangym_like.planners.cells import (
    CellOf,
    DynamicScreenCells,
    ObservationCells,
    ScreenCells,
    has_position,
    position_cells,
)
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask, Rules
from plangym_like.planners.nodes import ROOT, Nodes
from plangym_like.planners.plan import Plan, Spent
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search
from plangym_like.planners.walkers import Lineage, Walkers
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# This many screens of each batch are kept for a while, to fit dynamic cells to them.
_SCREENS = 4


class Visit(NamedTuple):
    """The best visit to a cell.

    Attributes
    ----------
    score : float
    frames : int
        The number of frames since the first state.
    found : Spent
        The cost of the search until the cell was first reached.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import GoExplore
    >>> env = plangym_like.make("MountainCar-v0")
    >>> state, obs, info = env.reset(seed=0)
    >>> cells = GoExplore(env).plan(state, budget=1_000, seed=0).info["cells"]
    >>> {visit.score + visit.frames for visit in cells.values()}  # every frame costs 1
    {0.0}
    """

    score: float
    frames: int
    found: Spent


@stored
class CellArchive:
    """The best visit to each cell; row 0 is the first state, whose cell is not known.

    States are kept as compressed differences from the first one: a few hundred bytes each on Atari.

    `legal` ``(A,)`` says which actions are legal in the first state. `thumbnail` is the shape of
    the small screens that are kept of each cell, for `rename`.
    """

    def __init__(self, state: Row, legal: Mask, thumbnail: tuple[int, ...] = (0,)) -> None:
        self._names: dict[Hashable, int] = {}
        self._cells = Nodes(
            *(("score", float), ("frames", np.int64), ("lives", float), ("node", np.intp)),
            *(("seen", np.int64), ("screen", np.uint8, thumbnail)),
            *(("transitions", np.int64), ("found_frames", np.int64)),
            *(("seconds", float), ("seconds_in_env", float), ("legal", bool, legal.shape)),
        )
        self._cells["legal"][0] = legal
        self._cells["lives"][0] = -np.inf
        self._first, self._states = np.array(state), [_packed(np.zeros_like(state))]

    def __len__(self) -> int:
        return len(self._names)

    def choose(self, count: int, rng: np.random.Generator) -> Walkers:
        """Draw `count` cells, and return walkers that start from their states.

        The probability of a cell is proportional to ``1 / sqrt(seen + 1)``, where `seen` counts the
        steps that explorations have begun or ended in the cell since its best visit.
        """
        cells = self._cells
        weights = 1 / np.sqrt(cells["seen"] + 1)
        rows = rng.choice(cells.size, count, p=weights / weights.sum())
        np.add.at(cells["seen"], rows, 1)
        states = np.stack([self._first ^ _unpacked(self._states[row]) for row in rows])
        names = ("score", "frames", "lives", "node", "legal")
        return Walkers(states, *(cells[name][rows] for name in names))

    def add(self, after: Walkers, names: list[Hashable], spent: Spent, screens: Any = 0) -> None:
        """Keep visits to new cells and better visits to known cells; count all others.

        `after` are N walkers after a step, and `names` the cells that they are in. `screens`
        ``(N, H, W)`` are thumbnails, if cells have any.
        """
        cells = self._cells
        rows = np.array([self._names.setdefault(one, len(self._names) + 1) for one in names])
        new = int(rows.max(initial=0)) + 1 - cells.size
        if new > 0:
            cells.add(
                np.full(new, ROOT),
                score=-np.inf,
                transitions=spent.transitions,
                found_frames=spent.frames,
                seconds=spent.seconds,
                seconds_in_env=spent.seconds_in_env,
            )
            self._states.extend([b""] * new)
        # Of several visits to a cell in one step, the best one counts, the first of equal ones.
        order = np.lexsort((after.frames, -after.scores, rows))
        best = order[np.unique(rows[order], return_index=True)[1]]
        known, score = rows[best], cells["score"][rows[best]]
        better = (after.scores[best] > score) | (
            (after.scores[best] == score) & (after.frames[best] < cells["frames"][known])
        )
        kept, rows_kept = best[better], rows[best[better]]
        cells["seen"][rows_kept] = 0
        seen = np.ones(len(rows), bool)
        seen[kept] = False
        np.add.at(cells["seen"], rows[seen], 1)
        for name, values in (
            *(("score", after.scores), ("frames", after.frames), ("lives", after.lives)),
            *(("node", after.nodes), ("screen", screens), ("legal", after.legal)),
        ):
            cells[name][rows_kept] = values[kept] if np.ndim(values) else values
        for row, cell in zip(kept.tolist(), rows_kept.tolist(), strict=True):
            self._states[cell] = _packed(after.states[row] ^ self._first)

    def rename(self, cells: ScreenCells) -> None:
        """Use other cells, computed from the screens of the known ones; keep the best visits."""
        old = self._cells
        order = np.lexsort((old["frames"][1:], -old["score"][1:])) + 1
        found = dict[Hashable, int]()
        for begin in range(0, len(order), 1024):
            rows = order[begin : begin + 1024]
            for name, row in zip(cells.of_thumbnails(old["screen"][rows]), rows, strict=True):
                found.setdefault(name, int(row))
        kept = np.array([0, *found.values()])
        self._names = {name: row for row, name in enumerate(found, start=1)}
        self._cells = old.take(kept)
        self._states = [self._states[row] for row in kept]

    def visits(self) -> dict[Hashable, Visit]:
        """Return the best visit to each cell."""
        names = ("score", "frames", "transitions", "found_frames", "seconds", "seconds_in_env")
        columns = zip(*(self._cells[name][1:].tolist() for name in names), strict=True)
        return {
            name: Visit(score, frames, Spent(*found))
            for name, (score, frames, *found) in zip(self._names, columns, strict=True)
        }

    def newest(self) -> int:
        """Return the node of the cell that was found last; without cells, 1 (the first step)."""
        if not self._names:
            return 1
        latest = int(np.argmax(self._cells["transitions"][1:])) + 1
        return int(self._cells["node"][latest])


@stored
@dataclass
class _Memory:
    """The state of a search; `step` is how many actions the current explorations have taken."""

    archive: CellArchive
    lineage: Lineage
    batch: int
    dynamic: DynamicScreenCells | None = None
    walkers: Walkers | None = None
    step: int = 0
    # Thumbnails of recent screens, and the number of transitions after which cells are fitted.
    recent: deque[NDArray[np.uint8]] = field(default_factory=deque)
    due: int = 0


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

    Differences from the paper:

    - `batch` cells are explored at the same time.
    - An exploration ends when a life is lost.
    - The beginning of an exploration counts as another step in its cell, so that cells whose states
      lead to death at once are drawn less often.
    - The paper's additional weights for Montezuma's Revenge, by neighbours, keys and levels, are
      left out.
    - Cells of screens are computed from thumbnails. Their sizes are fitted ever more rarely.

    An episode counts as a plan if it has ended or has a score greater than 0. If no episode counts,
    the plan leads to the cell that was found last.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box.
    cell_of : callable, optional
        ``cell_of(obs, infos)`` takes N observations and their `BatchInfo`, and returns a list of N
        hashable objects, the cell of each row. A row whose cell is ``None`` is not kept, and its
        exploration ends. The default is `position_cells` if infos have the player's ``room``,
        ``x`` and ``y``, as in Montezuma's Revenge; otherwise, it is `DynamicScreenCells` for
        screens, and `ObservationCells` for at most 8 numbers.
    batch : int
        The number of cells that are explored at the same time.
    steps : int
        The length of an exploration, in actions.
    repeat : float
        The probability that an action repeats the previous one.
    dt : int
        How long each action is held.
    **rules
        See `Rules`.

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
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.batch, self.steps = as_count("batch", batch), as_count("steps", steps)
        self.dt = as_count("dt", dt)
        self.repeat = as_number("repeat", repeat, 0.0, 1.0)
        self._sample = ActionSampler(env, self.name)
        space = env.observation_space
        self._has_default = cell_of is None
        if cell_of is None:
            is_screen = ScreenCells.takes(space)
            cell_of = DynamicScreenCells() if is_screen else ObservationCells(space)
        elif not callable(cell_of):
            raise InputError(f"cell_of must be a function of obs and infos, got {cell_of!r}")
        elif isinstance(cell_of, ScreenCells) and not cell_of.takes(space):
            raise InputError(f"{type(cell_of).__name__} needs screens, got observations of {space}")
        self.cell_of: CellOf = cell_of

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        lineage, batch, cells = Lineage(self.env), search.fit(self.batch), self.cell_of
        legal = search.legal_starts()[0]
        if not isinstance(cells, DynamicScreenCells):
            return _Memory(CellArchive(state, legal), lineage, batch)
        cells = copy.copy(cells)  # each search begins with the same representation
        screen = np.zeros((1, *(self.env.observation_space.shape or ())), np.uint8)
        archive = CellArchive(state, legal, cells.thumbnails(screen).shape[1:])
        recent = deque[NDArray[np.uint8]](maxlen=cells.sample)
        return _Memory(archive, lineage, batch, cells, recent=recent, due=cells.every)

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        archive, lineage = memory.archive, memory.lineage
        while search.has(memory.batch if memory.walkers is None else len(memory.walkers.nodes)):
            first = None
            if memory.walkers is None:
                self._fit(memory, search)
                first = self._sample(search.rng, memory.batch)
                memory.walkers, memory.step = archive.choose(memory.batch, search.rng), 0
            self._step(memory, search, memory.walkers, first)
            search.report(search.best.score, f"{len(archive):,} cells")
        best = search.best
        taken, dt, rewards = lineage.moves(archive.newest() if best.found is None else best.found)
        visits = archive.visits()
        return search.plan(state, taken, rewards, dt, ended=best.ended, cells=visits)

    def _step(self, memory: _Memory, search: Search, walkers: Walkers, first: Any) -> None:
        """Let each walker take an action (`first` if they have just begun); keep what is found."""
        rng, lineage, count = search.rng, memory.lineage, len(walkers.nodes)
        actions = self._sample(rng, count)
        kept = rng.random(count) < (self.repeat if first is None else 1.0)
        actions[kept] = (lineage["action"][walkers.nodes] if first is None else first)[kept]
        actions = self._sample.among(actions, walkers.legal, rng)
        step, after = walkers.step(search, lineage, actions, self.dt)
        over = step.terminateds | step.truncateds
        search.keep_episode(after.nodes, after.scores, over)
        if self._has_default and has_position(step.infos):
            memory.dynamic, self.cell_of = None, position_cells
        cell_of: CellOf = memory.dynamic or self.cell_of
        names, screens = _cells(step, cell_of)
        lost = (over | (after.lives < walkers.lives)).tolist()
        alive = [row for row, name in enumerate(names) if name is not None and not lost[row]]
        seen = 0 if screens is None else screens[alive]
        if len(alive) < count:
            names, after = [names[row] for row in alive], after.take(np.array(alive, np.intp))
        if alive:
            memory.archive.add(after, names, search.spent(), seen)
        memory.step += 1
        memory.walkers = after if alive and memory.step < self.steps else None
        if screens is not None:
            memory.recent.extend(screens[rng.integers(count, size=_SCREENS)])

    @staticmethod
    def _fit(memory: _Memory, search: Search) -> None:
        """Fit dynamic cells to recent screens if it is time to."""
        cells, done = memory.dynamic, search.spent().transitions
        if cells is not None and done >= memory.due:
            cells.fit(np.stack(memory.recent), search.rng)
            memory.archive.rename(cells)
            memory.due = 2 * done


def _cells(
    step: BatchTransition, cell_of: CellOf
) -> tuple[list[Hashable], NDArray[np.uint8] | None]:
    """Return the cell of each row of a batch, and thumbnails of dynamic cells, each ``(N,)``."""
    if isinstance(cell_of, DynamicScreenCells):
        screens = cell_of.thumbnails(step.obs)
        return cell_of.of_thumbnails(screens), screens
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
    return found, None


def _packed(row: Row) -> bytes:
    return zlib.compress(row.tobytes(), 1)


def _unpacked(content: bytes) -> Row:
    return np.frombuffer(zlib.decompress(content), np.uint8)
