"""The report of `check_env`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# Name of a check -> the property that it tests, and advice if it fails; in the order of checks.
DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "made": (
        "the environment can be saved",
        "do what the message advises, or add save_state() and load_state(saved)",
    ),
    "repeat": (
        "the same seed and actions give the same episode in every copy",
        (
            "let reset(seed=...) set every generator and every attribute, draw from "
            "self.np_random, keep nothing in the class, the module or a global generator, and read "
            "no clock"
        ),
    ),
    "results": (
        "observations, rewards and flags are what Gymnasium's API and the spaces promise",
        (
            "return observations with the keys, shape and dtype of observation_space, or declare "
            "the space that fits them; return one number as the reward"
        ),
    ),
    "saving": (
        "reading the state changes nothing",
        "do not draw or count in code that runs during saving (properties, save_state)",
    ),
    "restore": (
        "an episode continues from a restored state as if it had never stopped",
        (
            "save the data named here; keep everything on which later steps depend in attributes "
            "of the environment or its wrappers, and nothing in a closure"
        ),
    ),
    "purity": (
        "a row of step_batch depends on its own action and state alone",
        "carry nothing over from one row to the next, and do not write into given arrays",
    ),
    "rollout": (
        "rollout_batch gives the same results as its steps taken one by one",
        "step a row through its actions in step_rows, and stop when its episode ends",
    ),
    "workers": (
        "worker processes give the same results, whatever their number",
        (
            "depend on nothing that differs between processes: hashes of strings, memory "
            "addresses, process ids, the order of sets, environment variables"
        ),
    ),
    "image": (
        "after set_state, the image shows that state",
        "render the image from the state, not from earlier images",
    ),
    "seeds": (
        "with seeds, a row depends on its own action, state and seed alone",
        "draw all randomness of steps from self.np_random, even if reset has replaced it",
    ),
    "dt": (
        "dt=n gives the same result as n steps with the same action",
        "do not count calls of step_batch in a wrapper or simulator",
    ),
    "unseeded": (
        "states of episodes without a seed are saved exactly too",
        "keep every generator in an attribute, and draw from self.np_random",
    ),
    "wrappers": (
        "inside wrappers, the environment is saved exactly too",
        "give wrappers the environment's own np_random and spaces",
    ),
}


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that failed.

    Attributes
    ----------
    check : str
        The name of the check, a key of `DESCRIPTIONS`.
    step : int or None
        The number of the step since the restore or the reset, counting from 1; 0 for the reset
        itself; ``None`` if the difference is not in a step.
    field : str
        What differs: ``reward``, ``observation[3]``, ``info['lives']``, ``next state``, ...
    detail : str
        The two values, and the cause if it is known.

    Examples
    --------
    >>> failed = FailedCheck("repeat", 3, "reward", "1.0 and 0.5")
    >>> print(failed)
    FAILED  the same seed and actions give the same episode in every copy
            reward at step 3: 1.0 and 0.5
            what to do: let reset(seed=...) set every generator ...
    """

    check: str
    step: int | None
    field: str
    detail: str

    @property
    def advice(self) -> str:
        """What the user can do to make the check pass."""
        return DESCRIPTIONS[self.check][1]

    def __str__(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        return (
            f"FAILED  {DESCRIPTIONS[self.check][0]}\n"
            f"        {self.field}{at}: {self.detail}\n"
            f"        what to do: {self.advice}"
        )


@dataclass(slots=True)
class Report:
    """The results of `check_env` for one environment.

    Attributes
    ----------
    name : str
        The name of the environment.
    snapshot, snapshot_note : str
        How its states are saved, and why.
    exactness, exactness_note : str
        ``"exact"`` or ``"approximate"``, and why.
    state_nbytes : int
        The number of bytes in one state row.
    save_us, restore_us, step_us : float
        The times to save a state, to restore one, and to step, in microseconds.
    passed : list of str
        The names of the checks that passed.
    failed : list of FailedCheck
        The check that failed, if any; later checks are not run.
    states, steps : int
        How many states were restored, and how many steps were taken from them in total.

    Examples
    --------
    >>> import plangym_like
    >>> report = plangym_like.check_env("CartPole-v1", states=2, steps=3, workers=())
    >>> report.ok, report.failed, report.passed[:2]
    (True, [], ['made', 'repeat'])
    >>> report.as_dict()["exactness"]
    'exact'
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
    passed: list[str] = field(default_factory=list)
    failed: list[FailedCheck] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serialisable values."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        lines = [f"{self.name}: {'every check passed' if self.ok else 'a check FAILED'}"]
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
        lines += [f"  passed  {DESCRIPTIONS[check][0]}" for check in self.passed]
        lines += [f"  {line}" for failed in self.failed for line in str(failed).splitlines()]
        return "\n".join(lines)
