"""The fork server: what it preloads, what it survives, whom it serves."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hosted import HostedObject, run_script, wait_until_gone
from usual import first_of

from plangym_like.errors import WorkerDiedError, WorkerStartError
from plangym_like.processes import start_methods
from plangym_like.processes.external_process import ExternalProcess

STARTS_A_THREAD = (
    "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
)


@pytest.fixture
def fresh_fork_server() -> Iterator[None]:
    """Start from no fork server, and leave none of this test's behind."""
    before, start_methods._current = start_methods._current, None
    yield
    if (made := start_methods._current) is not None:
        made.close()
    start_methods._current = before


def test_workers_find_the_usual_modules_and_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = ["exits_at_import", "colorsys", "no_such_module"]
    with ExternalProcess(HostedObject, preload=wanted) as process:
        loaded = process.modules()
        with pytest.raises(SystemExit):
            process.apply(lambda hosted: __import__("exits_at_import"))(60)
    assert {"numpy", "gymnasium", "cloudpickle", "colorsys"} <= set(loaded)
    assert not {"no_such_module", "pytest"} & set(loaded)  # nor the script of the owner
    with ExternalProcess(HostedObject) as process:
        assert "colorsys" in process.modules()


def test_it_is_single_threaded_and_serves_many_threads() -> None:
    def work(index: int) -> int:
        with ExternalProcess(HostedObject) as process:
            return int(process.echo(index))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == list(range(24))
    current = start_methods._current
    assert psutil.Process(current.pid).num_threads() == 1
    assert not psutil.Process(current.pid).children()


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_dead_one_is_replaced_and_its_workers_end_with_it() -> None:
    with ExternalProcess(HostedObject) as old:
        future = old.call("sleep", 600)
        old.wait_ready(100)
        first, pid = start_methods._current.pid, old.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(
            WorkerDiedError, match="process that starts workers was killed"
        ) as caught:
            future(100)
        assert caught.value.exitcode is None
        assert not old.is_alive()
        assert wait_until_gone(pid, 100)
        with ExternalProcess(HostedObject) as new:
            assert new.echo(2) == 2
        assert start_methods._current.pid != first
        old.restart()
        assert old.echo(3) == 3
    assert not psutil.pid_exists(first)


@pytest.mark.usefixtures("fresh_fork_server")
def test_one_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(WorkerStartError, match="twice in a row"):
        ExternalProcess(HostedObject)
    monkeypatch.setattr("sys.executable", "")
    with pytest.raises(WorkerStartError, match=r"sys\.executable"):
        ExternalProcess(HostedObject)


@pytest.mark.usefixtures("fresh_fork_server")
def test_one_that_is_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_methods, "_PATIENCE", 1e6)
    with ExternalProcess(HostedObject) as old:
        old.wait_ready(100)
        pid = start_methods._current.pid

        def stop() -> None:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

        stop()
        with ExternalProcess(HostedObject) as new:
            assert new.echo(1) == 1
        stop()
        with pytest.raises(WorkerDiedError) as caught:
            old.end(7)
        assert caught.value.exitcode == 7
    assert start_methods._current.pid == pid


STOPS_AND_DIES = """
import os, pathlib, signal, time
folder = pathlib.Path(__file__).parent
fuse, told = folder / "fuse", folder / "pid"

def stop():
    if fuse.exists():
        (folder / "partial").write_text(str(os.getpid()))
        (folder / "partial").rename(told)
        os.kill(os.getpid(), signal.SIGSTOP)

def die():
    if fuse.exists():
        while not told.exists():
            time.sleep(0.001)
        fuse.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

os.register_at_fork(after_in_child=stop, after_in_parent=die)
"""


@pytest.mark.usefixtures("fresh_fork_server")
def test_one_that_dies_while_a_new_worker_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stops_and_dies.py").write_text(STOPS_AND_DIES)
    (tmp_path / "fuse").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(start_methods, "_PATIENCE", 1e6)
    with ExternalProcess(HostedObject, preload=["stops_and_dies"]) as process:
        assert process.echo(1) == 1
    pid = int((tmp_path / "pid").read_text())
    assert pid != process.pid
    os.kill(pid, signal.SIGCONT)
    assert wait_until_gone(pid, 100)


def _is_forked(process: ExternalProcess) -> bool:
    """Return whether the process is a copy of the fork server."""
    return psutil.Process(process.pid).ppid() == start_methods._current.pid


@pytest.mark.usefixtures("fresh_fork_server")
def test_once_a_module_has_started_threads_workers_are_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(STARTS_A_THREAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ExternalProcess(HostedObject) as before:
        assert before.echo(1) == 1 and _is_forked(before)
        for _ in range(2):
            with ExternalProcess(HostedObject, preload=["starts_a_thread"]) as process:
                assert "starts_a_thread" not in process.modules()
                assert not _is_forked(process)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "importing starts_a_thread starts threads" in caplog.text
        # Both kinds of workers say how they end.
        os.kill(before.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            before.echo(1)
        assert caught.value.exitcode == -9
    with ExternalProcess(HostedObject) as process, pytest.raises(WorkerDiedError, match="status 4"):
        process.end(4)


UNGUARDED = """
from plangym_like.processes.external_process import ExternalProcess
print("script")
class Env:
    def add(self, k):
        return k + 1
with ExternalProcess(lambda: Env(), start_method={method!r}) as process:
    print(process.add(1))
"""


@pytest.mark.parametrize(
    ("method", "place"),
    first_of(
        [("forkserver", "stdin"), ("spawn", "file"), ("forkserver", "file"), ("spawn", "stdin")], 2
    ),
)
def test_unguarded_scripts(method: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py" if place == "file" else None
    result = run_script(UNGUARDED.format(method=method), path=path)
    assert (result.stdout, result.stderr) == ("script\n2\n", "")


def test_ctrl_c_reaches_the_owner_alone() -> None:
    with (
        ExternalProcess(HostedObject) as process,
        ExternalProcess(HostedObject, start_method="spawn") as spawned,
    ):
        for each in (process, spawned):
            os.kill(each.call("pid")(100), signal.SIGINT)
            assert each.echo(1) == 1
    current = start_methods._current
    os.kill(current.pid, signal.SIGINT)
    with ExternalProcess(HostedObject) as process:
        assert process.echo(2) == 2
    assert start_methods._current is current


WITHOUT_FUNCTIONS = """
import os
import numpy as np
import plangym_like

assert not hasattr(os, "memfd_create") and not hasattr(os, "pidfd_open")
with plangym_like.make("CartPole-v1", n_workers=2, isolate=True) as env:
    state, _, _ = env.reset(seed=0)
    before = env.step_batch(np.arange(100) % 2, state)
    for process in env.batch_env:
        process.kill()
    after = env.step_batch(np.arange(100) % 2, state)
    assert np.array_equal(before.states, after.states)
    print(env.stats.deaths)
"""


def test_a_python_that_was_built_for_an_old_c_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks functions that the kernel has."""
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.memfd_create, os.pidfd_open\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run_script(WITHOUT_FUNCTIONS)
    assert (result.stdout, result.returncode) == ("2\n", 0), result.stderr
