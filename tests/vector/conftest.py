"""What tests of vectorised environments share: how they are made, divided and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playing import closing_all

from plangym_like.vector import make_vec
from plangym_like.vector.process_lanes import ProcessLanes


@pytest.fixture
def always_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all environments divided among processes, however cheap they are."""
    monkeypatch.setattr(make_vec, "_is_worth_messages", lambda *_, **__: True)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """`make_vec`, whose environments are closed after the test."""
    with closing_all() as make_one:
        yield make_one


@pytest.fixture
def make_lanes() -> Iterator[Callable[..., ProcessLanes]]:
    """`ProcessLanes`, which are closed after the test."""
    with closing_all(ProcessLanes) as make_one:
        yield make_one
