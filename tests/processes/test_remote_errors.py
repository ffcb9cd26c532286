"""Exceptions cross the border as themselves, or as faithfully as they can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hosted import HostedObject

from plangym_like.errors import (
    PlangymError,
    RemoteError,
    RemoteTraceback,
    StateMismatchError,
    WorkerDiedError,
)
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import pack_exception, unpack_exception
from plangym_like.processes.wire import dumps


@pytest.fixture(scope="module")
def process() -> Iterator[ExternalProcess]:
    with ExternalProcess(HostedObject) as process:
        yield process


def raised_in(process: ExternalProcess, make_error: Any) -> BaseException:
    def fail(hosted: Any) -> None:
        raise make_error()

    with pytest.raises(BaseException) as caught:
        process.apply(fail)(10)
    error = caught.value
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__)
    assert process.echo("alive") == "alive"
    return error


def test_groups_notes_and_causes(process: ExternalProcess) -> None:
    def make() -> Exception:
        try:
            raise LookupError("inner") from OSError(2, "deep")
        except LookupError as error:
            inner = error
        group = ExceptionGroup("several", [inner, ExceptionGroup("more", [KeyError("k")])])
        group.add_note("by the way")
        return group

    error = raised_in(process, make)
    assert isinstance(error, ExceptionGroup)
    assert error.message == "several"
    first, nested = error.exceptions
    assert (type(first), str(first)) == (LookupError, "inner")
    assert [type(member) for member in nested.exceptions] == [KeyError]
    assert error.__notes__ == ["by the way"]
    assert all(part in str(error.__cause__) for part in ("inner", "deep", "by the way"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "No such file", "rom.bin"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        json.JSONDecodeError("bad", "{", 1),
        WorkerDiedError("gone", 12, -9),
        StateMismatchError("other game", "a", "b"),
        KeyError(),
        BaseExceptionGroup("stop", [KeyboardInterrupt(), ValueError(1)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_usual_exceptions_arrive_whole(error: BaseException) -> None:
    copy = unpack_exception(pack_exception(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: repr(v) for k, v in vars(copy).items()} == {
        k: repr(v) for k, v in vars(error).items()
    }


def test_what_cannot_be_unpacked_here_is_an_error_that_says_so() -> None:
    foreign = b"cno_such_module\nError\n."
    error = unpack_exception(dumps((foreign, "Error: the pole broke", "in step")))
    assert type(error) is RemoteError
    assert "no_such_module" in str(error)
    assert "the pole broke" in str(error)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in step" in str(error.__cause__)
    assert isinstance(error, PlangymError)


def test_a_traceback_shows_the_remote_one_above(process: ExternalProcess) -> None:
    import traceback

    error = raised_in(process, lambda: ValueError("bottom"))
    text = "".join(traceback.format_exception(error))
    remote, local = text.index("RemoteTraceback"), text.index("direct cause")
    assert remote < local
    assert text.index("in fail") < local
