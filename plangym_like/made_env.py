"""`MadeEnv`: how an environment and its simulator are made and closed, and its properties."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from plangym_like.audit.auditor import EVERY, Auditor, check_audit
from plangym_like.batches import Layout
from plangym_like.current_state import CurrentState
from plangym_like.errors import ClosedError, InputError
from plangym_like.fork_safety import forget_after_fork, held_by_lost_thread
from plangym_like.simulator import Simulator
from plangym_like.spaces import check_out_of_bounds
from plangym_like.states import StateFormat
from plangym_like.stats import Stats

# Options that concern the environment and not its simulator.
_OWN_OPTIONS = ("autoreset", "return_image", "audit", "audit_every", "out_of_bounds")


class MadeEnv:
    """How an environment is made and closed, and its properties; `PlanEnv` has the parameters."""

    simulator_class: ClassVar[Callable[..., Simulator]]
    SINGLETON: ClassVar[bool] = False
    STATE_IS_ARRAY: ClassVar[bool] = True

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        frameskip: int | tuple[int, int] | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        *,
        return_image: bool = False,
        audit: str = "raise",
        audit_every: int = EVERY,
        out_of_bounds: str = "pass",
        **simulator_kwargs: Any,
    ) -> None:
        if return_image and simulator_kwargs.get("render_mode") != "rgb_array":
            raise InputError("return_image=True needs render_mode='rgb_array'")
        check_audit(audit, audit_every)
        self._name = name
        self._kwargs: dict[str, Any] = {
            "frameskip": frameskip,
            "autoreset": autoreset,
            "return_image": return_image,
            "audit": audit,
            "audit_every": audit_every,
            "out_of_bounds": check_out_of_bounds(out_of_bounds),
            **simulator_kwargs,
        }
        self.autoreset = autoreset
        self.return_image = return_image
        self._sim: Simulator | None = None
        self._stats = Stats()
        self._closed = self._torn = False
        if not delay_setup:
            self.setup()

    def setup(self) -> None:
        """Make the simulator, unless that has been done already."""
        if self._torn:
            raise ClosedError(
                f"the environment {self.name} was in use by another thread when this process was "
                "forked, so its simulator may be half-way through a step here: clone it or make "
                "another one"
            )
        if self._closed:
            raise closed(self._name)
        if self._sim is not None:
            return
        kwargs = {key: self._kwargs[key] for key in self._kwargs if key not in _OWN_OPTIONS}
        sim = type(self).simulator_class(self._name, **kwargs)
        columns = dict(sim.columns)
        if self.return_image:
            columns["rgb"] = (sim.image().shape, np.dtype(np.uint8))
        state_format = StateFormat(
            sim.family,
            sim.meaning(),
            sim.payload_nbytes,
            checksum=sim.checksum,
            variable=sim.variable,
        )
        self._layout = Layout(
            sim.observation_space,
            sim.action_space,
            state_format,
            columns,
            plain_infos=sim.plain_infos,
            exact=sim.exactness == "exact",
            out_of_bounds=self._kwargs["out_of_bounds"],
        )
        self.auditor = Auditor(
            self._layout,
            self.name,
            sim.state_difference,
            partial(_declare_approximate, sim),  # holding `self` would keep it alive
            mode=self._kwargs["audit"],
            every=self._kwargs["audit_every"],
            stats=self._stats,
            wrappers=sim.wrapper_names(),
        )
        self._lock = threading.RLock()
        self._current = CurrentState(sim, state_format)
        self._sim = sim
        forget_after_fork(self)

    def __getstate__(self) -> dict[str, Any]:
        if self._sim is not None:
            raise TypeError(
                f"{self!r} holds a live simulator and cannot be pickled: send its state rows, or "
                "make it with delay_setup=True and pickle it before its first use"
            )
        return self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # What it is

    @property
    def name(self) -> str:
        """The id, or the name of the callable that makes the environment."""
        return name_of(self._name)

    @property
    def simulator(self) -> Simulator:
        """The simulator, in the env's current state."""
        self._wake()
        simulator = self._made()
        self.auditor.forget()
        return simulator

    @property
    def gym_env(self) -> gymnasium.Env[Any, Any]:
        """The wrapped Gymnasium environment, in the env's current state."""
        return self.simulator.env

    @property
    def layout(self) -> Layout:
        """What this environment's batches look like."""
        self.setup()
        return self._layout

    @property
    def observation_space(self) -> Space[Any]:
        """The space of single observations."""
        return self.layout.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """The space of single actions."""
        return self.layout.action_space

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation."""
        return self.observation_space.shape

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """The shape of one action."""
        return self.action_space.shape

    @property
    def state_nbytes(self) -> int:
        """Bytes in one state row."""
        return self.layout.format.state_nbytes

    @property
    def frameskip(self) -> int | tuple[int, int]:
        """Frames that one action lasts; a pair is the range that it is drawn from."""
        return self._made().frameskip

    @property
    def exactness(self) -> str:
        """``"exact"``: bit-identical to never having stopped; else ``"approximate"``."""
        return self._made().exactness

    @property
    def exactness_note(self) -> str:
        """Why `exactness` is what it is."""
        return self._made().exactness_note

    @property
    def snapshot(self) -> str:
        """How states are saved: ``"native"``, ``"pickle"`` or ``"replay"``."""
        return self._made().snapshot

    @property
    def snapshot_note(self) -> str:
        """Why they are saved that way."""
        return self._made().snapshot_note

    @property
    def stats(self) -> Stats:
        """What has happened to batches so far."""
        return self._stats

    @property
    def unwrapped(self) -> Self:
        """This env itself: wrappers live inside it."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_closed", True):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        sim = self.simulator
        if hasattr(sim, name):
            return getattr(sim, name)
        return sim.env.get_wrapper_attr(name)

    # Its end

    def close(self) -> None:
        """Release the simulator; may be called again."""
        if self._sim is not None:
            self._sim.close()
            self._sim = None
        self._closed = True

    def forget(self) -> None:
        """Close in a forked copy of the process, if another thread was using it there."""
        if held_by_lost_thread(self._lock):
            # Closing it could block: the other thread was in the middle of a step.
            self._lock, self._sim = threading.RLock(), None
            self._closed = self._torn = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _made(self) -> Simulator:
        self.setup()
        assert self._sim is not None
        return self._sim

    def _wake(self) -> None:
        self.setup()
        self._current.restore()
        self._current.is_in_simulator()


def _declare_approximate(sim: Simulator, note: str) -> None:
    """Declare an environment approximate, and warn: the audit has found a difference."""
    sim.exactness, sim.exactness_note = "approximate", note
    warnings.warn(note, RuntimeWarning, stacklevel=4)


def name_of(name: Any) -> str:
    """Return an id, or the name of a callable."""
    return name if isinstance(name, str) else getattr(name, "__name__", "?")


def closed(name: Any) -> ClosedError:
    """Return the error for the use of the environment `name` after it was closed."""
    return ClosedError(f"the environment {name_of(name)} has been closed: make another one")
