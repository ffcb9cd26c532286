"""The kernel ends a process whose steps exceed the limit of a trial."""

from __future__ import annotations

import signal
import time

import pytest

from plangym_like import ExternalProcess
from plangym_like.errors import WorkerDiedError
from plangym_like.snapshots.step_limit import EXIT_CODE, steps_limited, time_limit


def _hang(_: object, least: float) -> None:
    with steps_limited(0.01), time_limit(least=least):
        while True:
            time.sleep(1)


def _finish(_: object) -> tuple[float, float]:
    with steps_limited(1000.0), time_limit(2):
        first = signal.getitimer(signal.ITIMER_REAL)[0]
        with time_limit():
            pass
        second = signal.getitimer(signal.ITIMER_REAL)[0]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    return first, second


def test_a_process_that_exceeds_the_limit_ends() -> None:
    with ExternalProcess(list) as process:
        with pytest.raises(WorkerDiedError) as caught:
            process.apply(_hang, 0.1).result()
        assert caught.value.exitcode == EXIT_CODE == -signal.SIGALRM


def test_the_limit_of_a_block_continues_after_a_block_inside() -> None:
    with ExternalProcess(list) as process:
        first, second = process.apply(_finish).result()
    assert 2000 < first <= 4000
    assert 2000 < second <= 4000


def _refuse(*_: object) -> None:
    raise AssertionError("the timer was set")


def test_there_is_no_limit_without_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "setitimer", _refuse)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    with time_limit():
        pass
    with steps_limited(None), time_limit():
        pass
    with pytest.raises(AssertionError), steps_limited(1.0), time_limit():
        pass


def test_a_program_that_uses_the_signal_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "setitimer", _refuse)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    with steps_limited(1.0), time_limit():
        pass
