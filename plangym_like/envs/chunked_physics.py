"""What the families of MuJoCo share: chunks are stepped at once where there is a form for them."""

from __future__ import annotations

import abc

from plangym_like.batches import Rows
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.mujoco_robots.chunk_stepper import ChunkStepper


class ChunkedPhysics(GymnasiumSimulator):
    """A simulator that looks for its `ChunkStepper` when it is first given rows."""

    _stepper: ChunkStepper | None = None
    _tried = False

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole chunks where there is a form for them, else row by row."""
        stepper = self._chunk_stepper(rows)
        if stepper is None:
            super().step_rows(rows, start, stop)
        else:
            stepper.step(rows, start, stop)

    def rollout_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step whole chunks through all their T actions where there is a form for them."""
        stepper = self._chunk_stepper(rows) if isinstance(rows.inputs.dt, int) else None
        if stepper is None:
            super().rollout_rows(rows, start, stop)
        else:
            stepper.rollout(rows, start, stop)

    def _chunk_stepper(self, rows: Rows) -> ChunkStepper | None:
        if self.plain_infos or "rgb" in rows.columns:
            return None
        if not self._tried:
            self._tried = True
            self._stepper = self._find_stepper()
        return self._stepper

    @abc.abstractmethod
    def _find_stepper(self) -> ChunkStepper | None:
        """Return the stepper, once it has given the same bytes as the environment itself."""
