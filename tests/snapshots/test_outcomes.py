"""An outcome is independent of the environment, and an error is an outcome too."""

from typing import Any

import numpy as np
import pytest

from plangym_like.errors import SnapshotError, StateCapacityError
from plangym_like.snapshots.outcomes import compare_outcomes, ends, outcome_of

SEEN = np.zeros(2)


def step(action: Any) -> tuple[Any, ...]:
    SEEN[0] += 1
    action.append(1)
    episode = {"r": 1.0, "l": 2, "t": SEEN[0]}
    return SEEN, 1.0, False, SEEN[0] > 2, {"episode": episode}


def test_an_outcome_belongs_to_the_caller() -> None:
    action: list[int] = []
    outcome = outcome_of(step, action)
    later = outcome_of(step, action)
    assert action == [] and not ends(outcome)
    assert outcome[0][0] == later[0][0] - 1
    assert outcome[4] == {"episode": {"r": 1.0, "l": 2}}
    assert compare_outcomes(outcome, later) == ("observation[0]", "1.0 and 2.0")
    assert compare_outcomes(outcome, outcome) is None
    assert ends(outcome_of(step, action))


def raising(error: Exception) -> Any:
    def step(action: Any) -> Any:
        raise error

    return step


def test_an_error_is_an_outcome() -> None:
    one, other = (outcome_of(raising(ValueError(text)), 0) for text in ("not now", "never"))
    assert one == ("ValueError: not now",) and ends(one)
    found = compare_outcomes(one, other)
    assert found is not None and found[0] == "error"
    assert compare_outcomes(one, (0, 0.0, False, False, {})) is not None


def test_the_text_of_an_error_can_be_left_out() -> None:
    errors = ValueError("process 1"), ValueError("process 2")
    one, other = (outcome_of(raising(error), 0, error_text=False) for error in errors)
    assert one == other == ("ValueError",)


def test_addresses_in_errors_do_not_count() -> None:
    one, other = (outcome_of(raising(KeyError(object())), 0) for _ in range(2))
    assert one == other == ("KeyError",)


@pytest.mark.parametrize("error", [SnapshotError("x"), StateCapacityError("x")])
def test_states_that_cannot_be_saved_are_errors(error: Exception) -> None:
    with pytest.raises(type(error)):
        outcome_of(raising(error), 0)
