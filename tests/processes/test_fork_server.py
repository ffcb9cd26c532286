"""The fork server: what it preloads, what it survives, whom it serves."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hosted import HostedObject, run_script, wait_until_gone, workers
from usual import first_of

from plangym_like.errors import WorkerDiedError, WorkerStartError
from plangym_like.processes import start_methods, system_calls
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


def test_workers_find_the_usual_modules_and_those_asked_for() -> None:
    with ExternalProcess(HostedObject, preload=["colorsys", "no_such_module"]) as process:
        loaded = process.modules()
    assert {"numpy", "gymnasium", "cloudpickle", "colorsys"} <= set(loaded)
    assert "no_such_module" not in loaded
    with ExternalProcess(HostedObject) as process:
        assert "colorsys" in process.modules()


def test_workers_never_import_the_owners_script() -> None:
    with ExternalProcess(HostedObject) as process:
        assert (
            process.apply(
                lambda hosted: __import__("sys").modules["__main__"].__dict__.get("__file__")
            )(10)
            is None
        )
        assert "pytest" not in process.modules()


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


def _is_forked(process: ExternalProcess) -> bool:
    """Return whether the process is a copy of the fork server, rather than spawned by it."""
    assert psutil.Process(process.pid).ppid() == start_methods._current.pid
    return any("fork_server_main" in word for word in psutil.Process(process.pid).cmdline())


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


@pytest.mark.usefixtures("fresh_fork_server")
def test_if_python_starts_with_threads_workers_are_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STARTS_A_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        with ExternalProcess(HostedObject) as process:
            assert process.echo(1) == 1 and not _is_forked(process)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.usefixtures("fresh_fork_server")
def test_warm_up_does_not_wait() -> None:
    start_methods.warm_up(["colorsys"])
    assert start_methods._current is not None
    with ExternalProcess(HostedObject) as process:
        assert "colorsys" in process.modules()


@pytest.mark.usefixtures("fresh_fork_server")
def test_an_owner_that_ignores_its_children_learns_how_they_ended() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (
            ExternalProcess(HostedObject) as process,
            pytest.raises(WorkerDiedError, match="status 4"),
        ):
            process.end(4)
    finally:
        signal.signal(signal.SIGCHLD, before)


BUSY = """
import sys, threading
from plangym_like.processes.external_process import ExternalProcess

sys.setswitchinterval(0.0005)
over = threading.Event()
def spin():
    while not over.is_set():
        sum(range(1000))

threads = [threading.Thread(target=spin) for _ in range(8)]
for thread in threads:
    thread.start()
with ExternalProcess(lambda: {"a": 1}) as process:
    print(process.get("a"))
over.set()
"""

UNGUARDED = """
from plangym_like.processes.external_process import ExternalProcess
print("script")
class Env:
    def add(self, k):
        return k + 1
with ExternalProcess(lambda: Env(), start_method={method!r}) as process:
    print(process.add(1))
"""

POOL_IN_SCRIPT = """
import multiprocessing
from plangym_like.processes.external_process import ExternalProcess

class Mine:
    def __init__(self, value):
        self.value = value

    def label(self):
        return f"{type(self).__name__} {self.value}"

def work(value):
    assert multiprocessing.current_process().daemon
    with ExternalProcess(lambda: Mine(value)) as process:
        return process.label()

if __name__ == "__main__":
    with multiprocessing.get_context("%s").Pool(2) as pool:
        print(pool.map(work, range(4)))
"""


WITHOUT_OUTPUTS = """
import os, sys
result = os.dup(1)
if {late}:
    from plangym_like.processes.start_methods import get_ready
    get_ready("forkserver")
for descriptor in range(3):
    os.close(descriptor)
sys.stdin = sys.stdout = sys.stderr = None
from plangym_like.processes.external_process import ExternalProcess
for method in ("forkserver", "spawn", "fork"):
    with ExternalProcess(lambda: [1, 2], start_method=method) as process:
        process.apply(lambda numbers: print("into the void"))()
        os.write(result, b"%d" % process.index(2))
        assert process._child.connection.fileno() > 2
    for descriptor in range(3):
        os.close(descriptor)
"""


@pytest.mark.parametrize("late", first_of([True, False]))
def test_an_owner_without_standard_descriptors(late: bool) -> None:
    """They are closed before or after the fork server has started."""
    result = run_script(WITHOUT_OUTPUTS.format(late=late))
    assert (result.stdout, result.returncode) == ("111", 0)


def test_an_owner_with_busy_threads() -> None:
    result = run_script(BUSY)
    assert (result.stdout, result.stderr) == ("1\n", "")


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


# In a program of its own: a fork of one that has driven Ray inherits how Ray treats signals.
@pytest.mark.parametrize("context", first_of(["spawn", "fork"]))
def test_daemonic_pool_workers_host_the_classes_of_a_script(context: str, tmp_path: Path) -> None:
    result = run_script(POOL_IN_SCRIPT % context, path=tmp_path / "script.py")
    assert result.stdout == "['Mine 0', 'Mine 1', 'Mine 2', 'Mine 3']\n"
    assert result.stderr == ""


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


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_module_that_exits_when_it_is_imported_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ExternalProcess(HostedObject, preload=["exits_at_import", "colorsys"]) as process:
        assert "colorsys" in process.modules()
    with ExternalProcess(HostedObject, preload=["exits_at_import"]) as process:
        with pytest.raises(SystemExit):
            process.apply(lambda hosted: __import__("exits_at_import"))(60)
        assert process.echo(1) == 1


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_module_that_changes_signals_when_it_is_imported_hides_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changes_signals.py").write_text(
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_DFL)\nsignal.set_wakeup_fd(-1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with ExternalProcess(HostedObject, preload=["changes_signals"]) as process:
        assert "changes_signals" in process.modules()
        with pytest.raises(WorkerDiedError, match="status 4"):
            process.end(4)


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_module_that_ignores_children_hides_no_death_of_a_running_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ignores_children.py").write_text(
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with ExternalProcess(HostedObject) as process:
        start_methods.get_ready("forkserver", ["ignores_children"])
        with pytest.raises(WorkerDiedError, match="status 4"):
            process.end(4)


def _interrupt(number: int, frame: object) -> None:
    raise TimeoutError("of the program")


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_timeout_error_of_a_signal_handler_is_raised_and_replaces_nothing() -> None:
    with ExternalProcess(HostedObject) as old:
        old.wait_ready(100)
        server = start_methods._current
        before = signal.signal(signal.SIGALRM, _interrupt)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(TimeoutError, match="of the program"):
                ExternalProcess(HostedObject)
        finally:
            os.kill(server.pid, signal.SIGCONT)
            signal.signal(signal.SIGALRM, before)
        assert start_methods._current is server
        with ExternalProcess(HostedObject) as new:
            assert (old.echo(1), new.echo(2)) == (1, 2)


@pytest.mark.usefixtures("fresh_fork_server")
def test_a_slow_one_is_replaced_and_goes_on_until_its_workers_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patience, replace = start_methods._PATIENCE, start_methods._replace

    def replace_once(server: start_methods.ForkServer) -> None:
        start_methods._PATIENCE = patience
        replace(server)

    monkeypatch.setattr(start_methods, "_replace", replace_once)
    with ExternalProcess(HostedObject) as old, ExternalProcess(HostedObject) as other:
        old.wait_ready(100)
        slow = start_methods._current.pid
        os.kill(slow, signal.SIGSTOP)
        monkeypatch.setattr(start_methods, "_PATIENCE", 0.1)
        with ExternalProcess(HostedObject) as new:
            assert start_methods._current.pid != slow
            os.kill(slow, signal.SIGCONT)
            assert (old.echo(1), new.echo(2)) == (1, 2)
            with pytest.raises(WorkerDiedError, match="status 4"):
                old.end(4)
            assert other.echo(3) == 3
    assert wait_until_gone(slow, 100)


@pytest.mark.usefixtures("fresh_fork_server")
def test_spawned_workers_start_with_a_large_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(8):
        monkeypatch.setenv(f"LARGE_{index}", "x" * 100_000)
    with ExternalProcess(HostedObject, start_method="spawn") as process:
        assert len(process.environ("LARGE_7")) == 100_000
    monkeypatch.setenv("LARGE_0", "x" * 1_000_000)
    with pytest.raises(WorkerStartError, match="the environment variables are too long"):
        ExternalProcess(HostedObject, start_method="spawn")


def _first_environ(hosted: object) -> bytes:
    """Return the environment with which this process was started."""
    return Path("/proc/self/environ").read_bytes()


@pytest.mark.usefixtures("fresh_fork_server")
def test_workers_are_spawned_with_the_present_environment_though_the_fork_server_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_a_thread.py").write_text(STARTS_A_THREAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    start_methods.get_ready("forkserver", ["starts_a_thread"])
    monkeypatch.setenv("PRESENT", "yes")
    with ExternalProcess(HostedObject) as process:
        assert b"PRESENT=yes" in process.apply(_first_environ)(100).split(b"\0")


LATE = """
import atexit

def late():
    with ExternalProcess(lambda: [1, 2]) as process:
        print(process.index(2), process.pid)

atexit.register(late)  # before this package registers anything, so it is called afterwards
from plangym_like.processes.external_process import ExternalProcess
with ExternalProcess(lambda: [1, 2]) as process:
    print(process.index(1), process.pid)
"""


def test_a_worker_starts_at_the_exit_of_the_program() -> None:
    result = run_script(LATE)
    assert result.returncode == 0, result.stderr
    words = result.stdout.split()
    assert words[::2] == ["0", "1"]
    assert all(wait_until_gone(int(pid), 100) for pid in words[1::2])


NO_PIDFD = """
import errno, os
def fail(pid, flags=0):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
os.pidfd_open = fail
"""


@pytest.mark.usefixtures("fresh_fork_server")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_whose_end_the_fork_server_could_not_notice_is_ended(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_PIDFD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerStartError, match="open files"):
        ExternalProcess(HostedObject, start_method=method)
    assert not psutil.Process(start_methods._current.pid).children()


def test_a_child_whose_end_could_not_be_noticed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = workers()
    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(WorkerStartError, match="open files"):
        ExternalProcess(HostedObject, start_method="fork")
    assert workers() == before


WITHOUT_FUNCTIONS = """
import os, sys
import numpy as np
import plangym_like

assert not hasattr(os, "memfd_create") and not hasattr(os, "pidfd_open")
if __name__ == "__main__":
    method = sys.argv[1]
    with plangym_like.make("CartPole-v1", n_workers=2, isolate=True, start_method=method) as env:
        state, _, _ = env.reset(seed=0)
        before = env.step_batch(np.arange(100) % 2, state)
        for process in env.batch_env:
            process.kill()
        after = env.step_batch(np.arange(100) % 2, state)
        assert np.array_equal(before.states, after.states)
        print(env.stats.deaths)
"""


@pytest.mark.parametrize("method", first_of(["forkserver", "fork"]))
def test_a_python_that_was_built_for_an_old_c_library(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks functions that the kernel has."""
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.memfd_create, os.pidfd_open\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = f"import sys; sys.argv[1:] = [{method!r}]\n"
    result = run_script(arguments + WITHOUT_FUNCTIONS, path=tmp_path / "script.py")
    assert (result.stdout, result.returncode) == ("2\n", 0), result.stderr


def test_system_calls_that_fail_raise_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(OSError, match="Invalid argument") as caught:
        system_calls.pidfd_open(-1)
    assert caught.value.errno == errno.EINVAL
    for descriptor in (system_calls.memory_file(), system_calls.pidfd_open(os.getpid())):
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
