"""The public face of a worker: hosting, calling, reading attributes, closing."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hosted import HostedObject, Noted, workers

from plangym_like.errors import ClosedError, InputError
from plangym_like.processes.external_process import ExternalProcess

START_METHODS = ("forkserver", "spawn", "fork")


@pytest.fixture(scope="module", params=START_METHODS)
def process(request: pytest.FixtureRequest) -> Iterator[ExternalProcess]:
    with ExternalProcess(HostedObject, start_method=request.param) as process:
        yield process


def test_calls_and_attributes(process: ExternalProcess) -> None:
    assert process.call("echo", {"a": [1, 2.5]})(10) == {"a": [1, 2.5]}
    assert process.echo("direct") == "direct"
    assert process.label == "hosted"
    assert process.call("pid")(10) == process.pid != os.getpid()


def test_large_messages_both_ways(process: ExternalProcess) -> None:
    blob = os.urandom(3 << 20)
    assert process.echo(blob) == blob


def test_misspelled_attribute_is_an_attribute_error(hosted: ExternalProcess) -> None:
    with pytest.raises(AttributeError, match="no attribute 'eco'"):
        hosted.eco(1)
    assert not hasattr(hosted, "lable")
    with pytest.raises(AttributeError, match="underscore"):
        hosted._private  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'eco'"):
        hosted.call("eco", 1)(10)
    assert hosted.echo(2) == 2


def test_results_and_arguments_that_do_not_pickle_are_errors_of_that_call(
    hosted: ExternalProcess,
) -> None:
    with pytest.raises(TypeError, match="generator"):
        hosted.unpicklable()
    with pytest.raises(TypeError, match="object of class _thread.lock cannot be sent"):
        hosted.echo([1, threading.Lock()])
    with pytest.raises(RuntimeError, match="not here"):
        hosted.echo(FailsToLoad())
    assert hosted.echo(3) == 3


class FailsToLoad:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not here")


def test_apply_runs_a_function_on_the_object(hosted: ExternalProcess) -> None:
    offset = 5
    assert hosted.apply(lambda hosted, x: (type(hosted).__name__, x + offset), 2)(10) == (
        "HostedObject",
        7,
    )


def _read(hosted: Any, nbytes: int, fds: list[int]) -> list[tuple[bytes, bool]]:
    texts = []
    for descriptor in fds:
        inheritable = os.get_inheritable(descriptor)
        texts.append((os.read(descriptor, nbytes), inheritable))
        os.close(descriptor)
    return texts


def _count_descriptors(hosted: Any) -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_travel_and_belong_to_the_function(process: ExternalProcess) -> None:
    before = process.apply(_count_descriptors)(10)
    pipes = [os.pipe() for _ in range(3)]
    for index, (_, write) in enumerate(pipes):
        os.write(write, f"pipe {index}".encode())
    futures = [
        process.apply(_read, 100, fds=[pipes[0][0], pipes[1][0]]),
        process.apply(_read, 100, fds=[pipes[2][0]]),
    ]
    assert futures[0](10) == [(b"pipe 0", False), (b"pipe 1", False)]
    assert futures[1](10) == [(b"pipe 2", False)]
    for pipe in pipes:
        for descriptor in pipe:
            os.close(descriptor)
    assert process.apply(_count_descriptors)(10) == before


def test_a_gymnasium_environment_keeps_its_own_calls() -> None:
    alone = gymnasium.make("CartPole-v1")
    with ExternalProcess(lambda: gymnasium.make("CartPole-v1")) as process:
        obs, info = alone.reset(seed=3, options={"low": -0.01, "high": 0.01})
        hosted_obs, hosted_info = process.reset(seed=3, options={"low": -0.01, "high": 0.01})
        assert (hosted_obs == obs).all() and hosted_info == info == {}
        for action in (0, 1, 1):
            expected, found = alone.step(action), process.step(action)
            assert (found[0] == expected[0]).all() and found[1:] == expected[1:]
        assert len(process.reset()) == 2
        assert process.action_space == alone.action_space
        with pytest.raises(TypeError, match="blocking"):
            process.reset(blocking=False)
        assert process.call("step", 1)(100)[1] == 1.0


@pytest.mark.parametrize("method", START_METHODS)
def test_a_constructor_that_fails_says_so_at_the_first_use_and_leaves_nothing(
    method: str,
) -> None:
    def construct() -> None:
        raise LookupError("no such game", 7)

    before = len(workers())
    process = ExternalProcess(construct, start_method=method)
    for use in (lambda: process.wait_ready(100), lambda: process.label, lambda: process.echo(1)):
        with pytest.raises(LookupError, match="no such game") as caught:
            use()
        assert caught.value.args == ("no such game", 7)
        assert "in construct" in str(caught.value.__cause__)
        assert any("imported every package afresh" in note for note in caught.value.__notes__)
    assert not process.is_alive()
    assert len(workers()) == before
    process.close()


def test_use_after_close() -> None:
    process = ExternalProcess(HostedObject)
    future = process.call("sleep", 60)
    process.wait_ready(100)
    process.kill()
    process.close()
    process.close()
    with pytest.raises(ClosedError, match="closed"):
        future(100)
    for use in (
        lambda: process.echo(1),
        lambda: process.call("echo", 1),
        lambda: process.apply(len),
        lambda: process.wait_ready(),
        lambda: process.restart(),
        lambda: process.action_space,
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert "closed" in repr(process)


def test_close_closes_the_hosted_object(tmp_path: Path) -> None:
    note = tmp_path / "note"
    process = ExternalProcess(lambda: Noted(note))
    process.wait_ready(100)
    process.close(100)
    assert note.read_text() == "closed"
    assert process.exitcode == 0


def test_it_cannot_be_pickled(hosted: ExternalProcess) -> None:
    with pytest.raises(TypeError, match="constructor"):
        pickle.dumps(hosted)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="callable"):
        ExternalProcess(HostedObject())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'forkserver', 'spawn', 'fork'"):
        ExternalProcess(HostedObject, start_method="thread")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_sees_the_world_as_its_owner_does_now(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_today.py").write_text("value = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_JUST_NOW", "yes")

    def look() -> HostedObject:
        import module_of_today  # type: ignore[import-not-found]

        return HostedObject(f"{os.getcwd()} {module_of_today.value}")

    with ExternalProcess(look, start_method=method) as process:
        assert process.label == f"{tmp_path} 42"
        assert process.environ("SET_JUST_NOW") == "yes"
        assert process.environ("OMP_NUM_THREADS") == "1"


def test_workers_draw_different_random_numbers() -> None:
    def draw() -> tuple[float, float]:
        import random

        import numpy

        return random.random(), float(numpy.random.random())

    with ExternalProcess(draw) as one, ExternalProcess(draw) as other:
        first, second = (each.apply(lambda hosted: hosted)(10) for each in (one, other))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_prints_go_to_the_owners_output_and_disturb_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def chatter(hosted: Any, index: int) -> int:
        print("line", index)
        os.write(1, b"raw\n")
        return index

    with ExternalProcess(HostedObject) as process:
        assert [process.apply(chatter, index)(10) for index in range(3)] == [0, 1, 2]
    assert capfd.readouterr().out == "line 0\nraw\nline 1\nraw\nline 2\nraw\n"


def test_processes_that_the_hosted_object_starts_inherit_no_descriptor_of_ours() -> None:
    import subprocess
    import sys

    def look(hosted: Any) -> str:
        code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, close_fds=False
        ).stdout

    with ExternalProcess(HostedObject) as process:
        assert process.apply(look)(20).strip() == "[0, 1, 2]"
