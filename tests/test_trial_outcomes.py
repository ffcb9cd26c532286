"""Outcomes of trials are shared in a block, by kind and arguments."""

from __future__ import annotations

import numpy as np

from plangym_like.snapshots.trial_outcomes import (
    KnownTrials,
    TrialOutcome,
    TrialsElsewhere,
    known_trials,
    trials_shared,
)

OUTCOME = TrialOutcome("Kind", "a note")


def test_outcomes_belong_to_a_kind_and_arguments() -> None:
    known = KnownTrials()
    known.note(OUTCOME, ("name", {"size": 1}))
    assert known.find("Kind", ("name", {"size": 1})) == OUTCOME
    assert known.find("Kind", ("name", {"size": 2})) is None
    assert known.find("Other", ("name", {"size": 1})) is None
    assert known.outcomes() == [OUTCOME]


def test_arguments_that_cannot_be_compared_are_different() -> None:
    known = KnownTrials()
    known.note(OUTCOME, ("name", {"map": np.zeros(2)}))
    assert known.find("Kind", ("name", {"map": np.zeros(2)})) is None


def test_blocks_inside_each_other_share_and_others_do_not() -> None:
    with trials_shared() as outer, trials_shared() as inner:
        assert inner is outer
        known_trials().note(OUTCOME, ())
        assert known_trials().find("Kind", ()) == OUTCOME
        with trials_shared(KnownTrials()):
            assert known_trials().find("Kind", ()) is None
    assert known_trials().find("Kind", ()) is None


def test_outcomes_elsewhere_are_asked_for_once_and_only_if_needed() -> None:
    asked = []

    def ask() -> list[TrialOutcome]:
        asked.append(1)
        return [OUTCOME]

    with trials_shared(TrialsElsewhere(ask)):
        assert not asked
        assert known_trials().find("Kind", "any") == OUTCOME
        assert known_trials().find("Other", "any") is None
    assert asked == [1]
