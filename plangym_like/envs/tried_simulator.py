"""`TriedSimulator`: runs a trial when it is made; see `plangym_like.snapshots.trial`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from plangym_like.batch.simulator import Simulator
from plangym_like.envs.codec import Codec
from plangym_like.envs.wrapping import forget_seed
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chains import innermost, links
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import foreign_wrappers, is_foreign_env
from plangym_like.snapshots.open_libraries import libraries_left_open
from plangym_like.snapshots.outside_values import OutsideValues
from plangym_like.snapshots.trial import Trial, TrialRule
from plangym_like.snapshots.trial_outcomes import TrialOutcome, known_trials
from plangym_like.states.rows import Row


class TriedSimulator(Simulator):
    """A simulator that tests, in a trial, whether its environment repeats its results.

    The trial includes a second copy of the environment, if one can be made. See `TrialRule` for
    which environments are tested.
    """

    trial: ClassVar[TrialRule] = TrialRule()
    codec: Codec
    # What saves the wrappers' state: a `WrapperState` or a `ChainPickle`.
    memory: Any
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _is_copy: bool = False
    # Whether the environment or a wrapper has code from outside Gymnasium and this package.
    _has_foreign_code: bool = False
    _foreign_wrappers: Sequence[str] = ()
    # The outcome of the trial of another environment of this kind.
    _known: TrialOutcome | None = None
    # Restores the wrappers as they were before the first reset; used until the user's first reset.
    _restore_initial: Callable[[], None] | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments, so that the trial can make a second copy."""
        simulator = super().__new__(cls)
        simulator._arguments = args, kwargs
        return simulator

    def _inspect(self, env: gymnasium.Env[Any, Any]) -> None:
        """Find out whether the new chain `env` needs a trial, and whether one like it had one."""
        self._foreign_wrappers = foreign_wrappers(env)
        self._has_foreign_code = bool(self._foreign_wrappers) or is_foreign_env(innermost(env))
        if self._is_tried and not self._is_copy:
            self._known = known_trials().find(self._kind, self._arguments)

    @property
    def _is_tried(self) -> bool:
        return self.trial.always or self._has_foreign_code

    @property
    def _kind(self) -> str:
        return qualified_name(type(self))

    def _try_out(self) -> None:
        """Run the trial; if it fails, raise `SnapshotError`, or record why states are inexact."""
        if self._is_copy:
            return
        if self._known is not None:
            # Only the trial has shown whether the first reset and steps can be undone.
            self._watch_outside()
            if self._known.note:
                self._note_inexact(self._known.note)
        elif self._is_tried:
            note = self._run_trial(self.trial)
            outcome = TrialOutcome(self._kind, note, self.codec.nbytes)
            known_trials().note(outcome, self._arguments)
        if self.memory.unordered:
            self._note_inexact(self.memory.unordered)
        self.memory.strict = not self.memory.unordered

    def _watch_outside(self) -> None:
        """Copy the values of classes and modules on which the steps may depend."""
        if self._has_foreign_code and not self._is_copy:
            self.outside = OutsideValues(self.env)

    def _run_trial(self, rule: TrialRule) -> str:
        """Run the trial, and return why states are only approximate, or an empty string."""
        initial, self._restore_initial = self._restore_initial, None
        original = np.zeros(self.payload_nbytes, np.uint8)
        self.read(original)
        trial = Trial(self, self.second_copy, rule)
        try:
            note = trial.run()
        except SnapshotError as error:
            if self.exactness == "exact":
                with contextlib.suppress(Exception):
                    self._end_trial(original, initial)
                if self.outside is not None:
                    # Another way to save states begins with the same values.
                    self.outside.restore()
                raise
            note = str(error)
        self._end_trial(original, initial)
        if note:
            self._note_inexact(note)
        return note

    def _note_inexact(self, note: str) -> None:
        self.exactness = "approximate"
        self.exactness_note = "; ".join(filter(None, [self.exactness_note, note]))

    def _end_trial(self, original: Row, initial: Callable[[], None] | None) -> None:
        # Attributes that the first reset creates are kept, since `write` may be called before a
        # reset.
        self.write(original)
        self._restore_initial = initial
        forget_seed(self.env)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Return a context in which this may be used like a new simulator."""
        original = np.zeros(self.payload_nbytes, np.uint8)
        self.read(original)
        initial = self._restore_initial
        self.renew()
        self._restore_initial = None
        try:
            yield
        finally:
            self._end_trial(original, initial)

    def second_copy(self) -> Self | None:
        """Return a simulator made with the same arguments, which has been reset already.

        Return ``None`` if this family makes no copies, or if there can be only one simulator.
        """
        if not self.trial.copies:
            return None
        try:
            other = self.make_again(*self._arguments[0])
        except Exception:
            return None
        if links(other.env)[-1] is links(self.env)[-1]:
            # The callable returns the same object each time.
            return None
        # Steps that depend on the order of a set then give other results.
        other.memory.scatters = other.codec.scatters = True
        return other

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment and its wrappers.

        The options must not change a part of the environment that state rows do not hold. If they
        do, the attributes of the environment and its wrappers are restored. If the change was made
        inside an attribute, such as a model, the simulator can no longer be used.

        Raises
        ------
        SnapshotError
            The options change a part of the environment that state rows do not hold.
        """
        if options is None or self.exactness != "exact":
            return self.env.reset(seed=seed, options=options)
        before = dict(self.codec.fingerprint_fields())
        attributes = [(vars(link), dict(vars(link))) for link in links(self.env)]
        try:
            result = self.env.reset(seed=seed, options=options)
            if changed := self._changed_since(before):
                raise SnapshotError(
                    f"reset(options={options!r}) changed {changed}, which no state row holds; make "
                    "a new environment for each such change, or, if it is written in Python, make "
                    "it with snapshot='pickle'"
                )
        except BaseException:
            if self._changed_since(before):
                for now, then in attributes:
                    now.clear()
                    now.update(then)
                if changed := self._changed_since(before):
                    self._refuse_use(changed)
            raise
        return result

    def _changed_since(self, before: dict[str, Any]) -> str:
        """Return a phrase that names the changed `fingerprint_fields`, or ``""`` if none has."""
        after = self.codec.fingerprint_fields()
        changed = [name for name in before if after[name] != before[name]]
        name = qualified_name(type(links(self.env)[-1]))
        return f"the {' and the '.join(changed)} of {name}" if changed else ""

    def _refuse_use(self, changed: str) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise SnapshotError(
                f"a reset with options changed {changed}, and it cannot be changed back, so this "
                "environment can no longer be used: make another one"
            )

        # A check in each method would slow down every step.
        names = ("read", "write", "reset", "step", "step_env", "step_row")
        vars(self).update(dict.fromkeys((*names, "step_rows", "rollout_rows"), refuse))

    def suspect_wrappers(self) -> Sequence[str]:
        """Return the names of the wrappers that run code from outside Gymnasium and this package.

        For all other wrappers, it is known which attributes are state.
        """
        return self._foreign_wrappers

    def copy_for_audits(self) -> Simulator | None:
        """Return a second copy if the environment or its wrappers may have state outside its rows.

        Return ``None`` for a replayed environment: each replay checks the results of its steps.
        """
        if self._is_copy or self.snapshot == "replay" or not self._has_foreign_code:
            return None
        copy = self.second_copy()
        if copy is not None and copy.payload_nbytes != self.payload_nbytes:
            with libraries_left_open():
                copy.close()
            return None
        return copy

    def make_again(self, *args: Any, **changed: Any) -> Self:
        """Make another simulator of this class, without a trial.

        The new simulator's positional arguments are `args`. Its keyword arguments are those of this
        simulator, updated with `changed`.
        """
        kwargs = {**self._arguments[1], **changed}
        other = type(self).__new__(type(self), *args, **kwargs)
        other._is_copy = True
        other.__init__(*args, **kwargs)  # type: ignore[misc]
        return other
