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
from usual import first_of

from plangym_like.batchers import Workers
from plangym_like.batchers.rollout import BaseActorModule, multi, same
from plangym_like.errors import (
    ClosedError,
    InputError,
    WorkerDiedError,
)


class Trap(Count):
    """A Count that kills its process at the fourth step of an episode, once it is armed."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.flag = flag

    def step(self, action: Any) -> Any:
        if os.path.exists(self.flag) and self.index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_worker_that_dies_comes_out(tmp_path: Path) -> None:
    flag, workers = tmp_path / "armed", Workers(2, timeout=600.0)
    with multi.rollout(lambda: Trap(str(flag)), Follower(), 5, 4, 2, 8, 2, workers=workers) as it:
        next(it), next(it)
        pids = it.pids
        flag.touch()
        with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
            while True:
                next(it)
        (*_, where) = caught.value.__notes__
        assert "in worker rollout-" in where
        assert any(f"pid {pid}" in where for pid in pids)
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(ClosedError, match="this rollout failed with WorkerDiedError"):
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


@pytest.mark.parametrize("n_workers", first_of([1, 0, 2]))
@pytest.mark.parametrize("at", ["wait", "assemble"])
def test_an_interrupt_loses_nothing(
    n_workers: int, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with multi.rollout(
        Count, Follower(), 5, 2, 1, 4, 2, workers=n_workers, ordered=True, seed=0
    ) as it:
        next(it)
        owner, name = (it._workers, "wait") if at == "wait" else (it, "_assemble")
        original, calls = getattr(owner, name), []

        def interrupted(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) in (2, 3):
                raise KeyboardInterrupt
            return original(*args, **options)

        monkeypatch.setattr(owner, name, interrupted)
        interrupts = 0
        while it.stats.batches < 8:
            number = it.stats.batches
            try:
                assert next(it).state.obs[0, :, 0].tolist() == [5 * number % 7] * 2
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts == 2


def test_a_lag_is_never_exceeded() -> None:
    actor = Follower()
    for max_lag in (0, 3):
        lags = []
        with multi.rollout(Count, actor, 5, 3, 1, 12, 2, workers=0, max_lag=max_lag) as it:
            for _ in range(12):
                fragment = next(it)
                lags.append(it.stats.version - int(fragment.version.min()))
                with torch.no_grad():
                    actor.weight += 1
        assert max(lags) == max_lag
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
