"""What the families of MuJoCo share: chunks are stepped at once where there is a form for them."""

from __future__ import annotations

import abc
from typing import Any

from plangym_like.batches import Rows
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.mujoco_robots.chunk_stepper import ChunkStepper


class ChunkedPhysics(GymnasiumSimulator):
    """A simulator that looks for its `ChunkStepper` when actions of some dtype first come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._steppers: dict[str, ChunkStepper | None] = {}
        super().__init__(*args, **kwargs)

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
        kind = rows.inputs.actions.dtype.char
        if kind not in self._steppers:
            self._steppers[kind] = self._find_stepper(kind)
        return self._steppers[kind]

    @abc.abstractmethod
    def _find_stepper(self, kind: str) -> ChunkStepper | None:
        """Return the stepper, once it has given the same bytes as the environment itself.

        `kind` is the type character of the actions.
        """
