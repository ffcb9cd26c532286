"""What goes wrong in a worker comes out of the next `get`; `close` is quick; no process is left."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest
import torch
from episode_envs import Counter, count_env, endless_count_env, harmful_env
from usual import first_of

from plangym_like.batchers import Workers
from plangym_like.batchers.episodes import Batcher, EpisodeBatcher
from plangym_like.batchers.workers.group import WorkerGroup
from plangym_like.errors import ClosedError, InputError

# Both have the same workers.
KINDS: Any = pytest.mark.parametrize("kind", first_of([EpisodeBatcher, Batcher]))


def start(kind: Any, create_env: Any, n_threads: int = 2, **env_args: Any) -> Any:
    timeout = env_args.pop("timeout", 600.0)
    workers = Workers(n_threads, timeout=timeout)
    batcher = kind(5, 8, workers, [0, 10_000], Counter, {}, create_env, env_args)
    batcher.execute(*([8] if kind is EpisodeBatcher else []))
    return batcher


def fail(batcher: Any, error: Any, match: str) -> BaseException:
    """Check that `get` raises before its time is over, and that the batcher is of no use then."""
    pids = batcher._workers.pids
    begin = time.monotonic()
    with batcher:
        with pytest.raises(error, match=match) as caught:
            batcher.get()
        assert time.monotonic() - begin < 100
        with pytest.raises(ClosedError, match=f"this {type(batcher).__name__} was closed when"):
            batcher.get()
    assert not any(map(psutil.pid_exists, pids))
    return caught.value


@KINDS
@pytest.mark.parametrize("n_threads", first_of([2, 0]))
def test_a_step_that_raises(kind: Any, n_threads: int) -> None:
    batcher = start(kind, harmful_env, n_threads, harm="raise", only=10_000)
    error = fail(batcher, LookupError, "the pole has gone")
    notes = "\n".join(error.__notes__)
    assert "lane 1" in notes
    if n_threads:
        assert f"in worker {kind.__name__}-1 (pid " in notes and "group 1" in notes
        assert 'raise LookupError("the pole has gone")' in str(error.__cause__)


@KINDS
@pytest.mark.parametrize(
    ("harm", "n_threads", "name"),
    first_of(
        [("exit", 2, "SystemExit"), ("stop", 0, "StopIteration"), ("stop", 2, "StopIteration")]
    ),
)
def test_what_would_end_a_loop_or_the_program(
    kind: Any, harm: str, n_threads: int, name: str
) -> None:
    batcher = start(kind, harmful_env, n_threads, harm=harm)
    with batcher, pytest.raises(RuntimeError, match=name):
        for _ in iter(batcher.get, None):
            pass


def test_an_interrupt_in_this_process_leaves_nothing_half_done() -> None:
    batcher = start(EpisodeBatcher, harmful_env, 0, harm="interrupt")
    with batcher:
        with pytest.raises(KeyboardInterrupt):
            batcher.get()
        with pytest.raises(ClosedError, match="a KeyboardInterrupt stopped the episodes"):
            batcher.get()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (EpisodeBatcher, "episodes"),
        (Batcher, "reset"),
        (Batcher, "chunk"),
    ],
)
def test_an_interrupt_of_execute_begins_all_groups_once(
    kind: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = WorkerGroup.submit
    interrupted: list[str] = []

    def submitting(self: WorkerGroup, group: int, name: str, *args: Any) -> Any:
        job = submit(self, group, name, *args)
        if name == method and not interrupted:
            interrupted.append(name)
            signal.raise_signal(signal.SIGINT)
        return job

    create_env = count_env if kind is EpisodeBatcher else endless_count_env
    arguments = [8] if kind is EpisodeBatcher else []

    def play() -> list[Any]:
        results = []
        with kind(5, 8, 0, [0, 10_000], Counter, {}, create_env, {}) as batcher:
            for _ in range(3):
                try:
                    batcher.execute(*arguments)
                except KeyboardInterrupt:
                    with suppress(InputError):  # it has begun
                        batcher.execute(*arguments)
                try:
                    results.append(batcher.get(timeout=60.0))
                except KeyboardInterrupt:
                    results.append(batcher.get(timeout=60.0))
        return results

    expected = play()
    monkeypatch.setattr(WorkerGroup, "submit", submitting)
    found = play()
    assert interrupted
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.lengths, other.lengths)
        assert all(torch.equal(one[name], other[name]) for name, _ in one.items())
