"""The pool of buffers: who is served, how old a fragment may be, and what goes wrong."""

import os
import signal
import time
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from counting import Count, Follower

from plangym_like.batchers import Workers
from plangym_like.batchers.rollout import BaseActorModule, multi, same
from plangym_like.errors import (
    ClosedError,
    InputError,
    RemoteTraceback,
    WorkerDiedError,
    WorkerTimeoutError,
)


class Trap(Count):
    """A Count that does something at the fourth step of its third episode, once it is armed."""

    def __init__(self, what: str, flag: str) -> None:
        super().__init__()
        self.what, self.flag = what, flag

    def step(self, action: Any) -> Any:
        if os.path.exists(self.flag) and self.index == 3:
            if self.what == "raise":
                raise FloatingPointError("the world is broken")
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while self.what == "hang":
                time.sleep(0.01)
        return super().step(action)


def _start(factory: Callable[[], Any], **options: Any) -> Any:
    return multi.rollout(factory, Follower(), 5, 4, 2, 8, 2, workers=Workers(2, **options))


ENDS = {
    "raise": (FloatingPointError, "the world is broken"),
    "kill": (WorkerDiedError, "SIGKILL"),
    "hang": (WorkerTimeoutError, "no progress"),
}


@pytest.mark.parametrize("what", list(ENDS))
def test_what_goes_wrong_in_a_worker_comes_out(what: str, tmp_path: Path) -> None:
    flag = tmp_path / "armed"
    error, text = ENDS[what]
    # No worker that makes progress is silent for so long, however busy the machine is.
    patience = 5.0 if what == "hang" else 600.0
    with _start(lambda: Trap(what, str(flag)), timeout=patience) as it:
        next(it), next(it)
        pids = it.pids
        flag.touch()
        start = time.monotonic()
        with pytest.raises(error, match=text) as caught:
            while True:
                next(it)
        assert time.monotonic() - start < 100
        (*_, where) = caught.value.__notes__
        assert "in worker rollout-" in where
        assert any(f"pid {pid}" in where for pid in pids)
        if what == "raise":
            assert isinstance(caught.value.__cause__, RemoteTraceback)
            assert 'raise FloatingPointError("the world is broken")' in str(caught.value.__cause__)
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(ClosedError, match=error.__name__):
            next(it)


def test_environments_are_closed_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, workers may take longer than the default to end.
    close_in_time = partialmethod(multi.PooledRollout.close, timeout=100)
    monkeypatch.setattr(multi.PooledRollout, "close", close_in_time)

    class Closing(Count):
        def close(self) -> None:
            with open(tmp_path / "closed", "a") as file:
                file.write("x")

    options: dict[str, Any] = {"workers": 2, "start_method": "fork"}
    for close, expected in ((False, 0), (True, 6)):
        with multi.rollout(Closing, Follower(), 5, 3, 2, 6, 1, close=close, **options) as it:
            next(it)
        closed = tmp_path / "closed"
        assert (closed.stat().st_size if closed.exists() else 0) == expected


class Turtle(Count):
    """As slow as its lane's file says."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = gate

    def step(self, action: Any) -> Any:
        while os.path.exists(self.gate):
            time.sleep(0.01)
        return super().step(action)


def test_the_first_ready_is_the_first_served(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    made = tmp_path / "made"

    def factory() -> Any:
        # Whoever comes first waits at the gate, the others find theirs open.
        try:
            made.mkdir()
        except FileExistsError:
            return Turtle(str(tmp_path / "nothing"))
        return Turtle(str(gate))

    actor = Follower()
    options: dict[str, Any] = {"workers": 2, "start_method": "fork", "infos": False}
    with multi.rollout(factory, actor, 5, 2, 1, 4, 1, **options) as it:
        gate.touch()
        fragments = [next(it) for _ in range(6)]
        assert all(
            int(fragment.state.obs[0, 0, 0]) == 5 * n % 7 for n, fragment in enumerate(fragments)
        )
        gate.unlink()
        late = [next(it) for _ in range(4)]
        assert any(
            fragment.before.fin.all() and not fragment.state.stepno[0].any() for fragment in late
        )


@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_interrupt_loses_nothing(n_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with multi.rollout(
        Count, Follower(), 5, 2, 1, 4, 2, workers=n_workers, ordered=True, seed=0
    ) as it:
        next(it)
        wait, calls = it._workers.wait, []

        def interrupted(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return wait(*args, **options)

        monkeypatch.setattr(it._workers, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(9):
                next(it)
        seen = it.stats.batches
        for number in range(seen, seen + 6):
            assert next(it).state.obs[0, :, 0].tolist() == [5 * number % 7] * 2


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_fragment_whose_copy_was_interrupted_comes_next(
    n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with multi.rollout(
        Count, Follower(), 5, 2, 1, 4, 2, workers=n_workers, ordered=True, seed=0
    ) as it:
        next(it)
        assemble, broken = it._assemble, [1, 1]

        def interrupted(*args: Any) -> Any:
            if broken:
                broken.pop()
                raise KeyboardInterrupt
            return assemble(*args)

        monkeypatch.setattr(it, "_assemble", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(it)
        for number in range(1, 6):
            assert next(it).state.obs[0, :, 0].tolist() == [5 * number % 7] * 2


def test_a_lag_is_never_exceeded() -> None:
    actor = Follower()
    for max_lag in (0, 3):
        lags = []
        with multi.rollout(Count, actor, 5, 3, 1, 12, 2, workers=2, max_lag=max_lag) as it:
            for _ in range(12):
                fragment = next(it)
                lags.append(it.stats.version - int(fragment.version.min()))
                with torch.no_grad():
                    actor.weight += 1
        assert max(lags) <= max_lag
        assert it.stats.version == 11


def test_numbers_that_do_not_fit_together() -> None:
    for wrong in (
        {"n_steps": 0},
        {"n_actors": 0},
        {"n_per_actor": 0},
        {"n_per_batch": 0},
        {"n_buffers": 3, "n_per_batch": 4},
        {"max_lag": -1},
        {"workers": -1},
        {"n_buffers": 8.0},
        {"max_lag": 0.5},
        {"seed": -3},
        {"start_method": "thread"},
    ):
        with pytest.raises(InputError):
            multi.rollout(Count, Follower(), **{"n_steps": 5, **wrong})  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        for missing in ({"pinned": True}, {"device": "cuda"}):
            with pytest.raises(InputError, match="GPU"):
                multi.rollout(Count, Follower(), 5, **missing)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n_steps must be a whole number of at least 1"):
        same.rollout([Count()], Follower(), 0)
    with pytest.raises(InputError, match="2 seeds"):
        same.rollout([Count()], Follower(), seed=[1, 2])


class _Wrong(BaseActorModule):
    def __init__(self, answer: Callable[[Any], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, obs: Any, *rest: Any, hx: Any = None) -> Any:
        return self.answer(obs)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda obs: obs, r"\(actions, hx, info\)"),
        (lambda obs: (obs, (), {}), r"must be a tensor \(1, 1\)"),
        (lambda obs: ({"x": obs}, (), {}), "must be a tensor .*got dict"),
        (lambda obs: (obs[..., 0].long(), (), {"value": torch.zeros(1)}), r"axes \(T, B\)"),
    ],
)
def test_an_actor_of_another_form(answer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(same.rollout([Count()], _Wrong(answer)))
