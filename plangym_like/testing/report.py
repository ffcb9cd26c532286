"""What `check_env` found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# What is promised, in the order in which it is checked -> what to do where it is broken.
PROMISES: dict[str, tuple[str, str]] = {
    "made": (
        "the environment can be saved",
        "do what the reason says; or give it save_state() and load_state(saved)",
    ),
    "repeat": (
        "the same seed and actions give the same episode in every copy",
        (
            "have reset(seed=...) set every generator and every attribute, draw from "
            "self.np_random, keep nothing in the class, the module or a global generator, and look "
            "at no clock"
        ),
    ),
    "saving": (
        "reading the state changes nothing",
        "let nothing that is read while saving (properties, save_state) draw or count",
    ),
    "restore": (
        "from a restored state it goes on as if it had never stopped",
        (
            "have what is named here saved; keep all that the future depends on in attributes of "
            "the environment or its wrappers, where a snapshot finds it, and none of it in a "
            "closure"
        ),
    ),
    "past": (
        "restoring does not depend on what ran before",
        (
            "have every restore set everything; a value that only some states have must be removed "
            "again where they do not"
        ),
    ),
    "purity": (
        "a row of step_batch depends on its own action and state alone",
        "let nothing pass from one row to the next, and write into no array that was given",
    ),
    "rollout": (
        "rollout_batch gives what its steps give one by one",
        "have rollout_rows do what step_rows does, and stop a row where its episode ends",
    ),
    "travel": (
        "rows survive pickling and files",
        "rows are data: let them name no object of this process",
    ),
    "workers": (
        "child processes agree, however many there are",
        (
            "depend on nothing that differs between processes: hashes of text, memory addresses, "
            "process numbers, the order of sets, environment variables"
        ),
    ),
    "picture": (
        "after set_state, the picture is of that state",
        "draw the picture from the state, not from what was drawn before",
    ),
    "handed out": (
        "observations and infos that were returned are not changed by later steps",
        "return a new array and a new dict from each step",
    ),
    "seeds": (
        "with seeds, a row depends on its own action, state and seed alone",
        "draw all randomness of steps from self.np_random, whatever generator reset has made",
    ),
    "dt": (
        "dt=n gives what n steps of the same action give",
        "let nothing in a wrapper or simulator count calls of step_batch",
    ),
    "unseeded": (
        "states of episodes that began without a seed are saved as exactly",
        "keep every generator in an attribute, and draw from self.np_random",
    ),
    "wrappers": (
        "with wrappers around it, it is saved as exactly",
        "let what wrappers read, such as np_random and the spaces, be the environment's own",
    ),
}


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """One promise that does not hold.

    Attributes
    ----------
    promise : str
        A key of `PROMISES`.
    step : int or None
        Steps after the state was restored (or since the reset), the first being 1.
    field : str
        What differs: ``reward``, ``observation[3]``, ``info['lives']``, ``next state``, ...
    detail : str
        The two values, and what is known of the cause.
    """

    promise: str
    step: int | None
    field: str
    detail: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return PROMISES[self.promise][1]

    def __str__(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        return (
            f"BROKEN  {PROMISES[self.promise][0]}\n"
            f"        {self.field}{at}: {self.detail}\n"
            f"        what to do: {self.advice}"
        )


@dataclass(slots=True)
class Report:
    """What `check_env` found of one environment.

    Attributes
    ----------
    name : str
        The environment.
    snapshot, snapshot_note : str
        How its states are saved, and why so.
    exactness, exactness_note : str
        What it says of itself.
    state_nbytes : int
        Bytes in one row.
    save_us, restore_us, step_us : float
        Microseconds to read a state, to make one current that was left before, and to step.
    kept : list of str
        Promises that hold, as keys of `PROMISES`.
    broken : list of BrokenPromise
        Those that do not.
    states, steps : int
        How many restored states were continued, and for how many steps in all.
    """

    name: str
    snapshot: str = ""
    snapshot_note: str = ""
    exactness: str = ""
    exactness_note: str = ""
    state_nbytes: int = 0
    save_us: float = 0.0
    restore_us: float = 0.0
    step_us: float = 0.0
    states: int = 0
    steps: int = 0
    kept: list[str] = field(default_factory=list)
    broken: list[BrokenPromise] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise that was checked holds."""
        return not self.broken

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        lines = [f"{self.name}: {'every promise holds' if self.ok else 'NOT what is promised'}"]
        if self.snapshot:
            note = f" ({self.snapshot_note})" if self.snapshot_note else ""
            lines.append(f"  saved by {self.snapshot}{note}")
            note = f" ({self.exactness_note})" if self.exactness_note else ""
            lines.append(f"  {self.exactness}{note}, {self.state_nbytes} bytes a state")
        if self.step_us:
            lines.append(
                f"  save {self.save_us:.1f} us, restore {self.restore_us:.1f} us, "
                f"step {self.step_us:.1f} us; {self.states} states continued, {self.steps} steps"
            )
        lines += [f"  kept    {PROMISES[promise][0]}" for promise in self.kept]
        lines += [f"  {line}" for broken in self.broken for line in str(broken).splitlines()]
        return "\n".join(lines)
