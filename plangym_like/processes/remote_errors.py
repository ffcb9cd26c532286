"""Send exceptions from a worker to its owner.

An exception is pickled as a whole if it can be unpickled as its own type; otherwise by its type,
arguments and picklable attributes, so that ``__init__`` is not called; otherwise as text only, for
a `RemoteError` that names the type. The owner raises the exception with the remote traceback as its
``__cause__``.
"""

from __future__ import annotations

import traceback
from typing import Any

from plangym_like.errors import RemoteError, RemoteTraceback
from plangym_like.processes.wire import dumps, loads
from plangym_like.results import Future


def pack_exception(error: BaseException, *, skip_frames: int = 0) -> bytes:
    """Return `error` as bytes for `unpack_exception`; never fails.

    Any exception that formatting or pickling `error` raises is caught, even ``SystemExit``.

    Parameters
    ----------
    error : BaseException
        The exception; its traceback, causes and notes are packed too.
    skip_frames : int
        How many of the outermost frames to leave out of the traceback's text.
    """
    text, summary = _traceback_text(error, skip_frames), _summary(error)
    for form in (error, _Parts(error)):
        try:
            data = dumps(form)
            copy = loads(data)
            is_complete = form is not error or _shape(copy) == _shape(error)
            if is_complete and type(copy) is type(error):
                return dumps((data, summary, text))
        except BaseException:  # this form does not work for this exception: try the next
            continue
    return dumps((None, summary, text))


def unpack_exception(payload: bytes | memoryview) -> BaseException:
    """Return the exception packed in `payload`, with a `RemoteTraceback` as its ``__cause__``.

    Examples
    --------
    >>> error = unpack_exception(pack_exception(KeyError("pole")))
    >>> error, type(error.__cause__).__name__
    (KeyError('pole'), 'RemoteTraceback')
    """
    # The text is packed separately: it arrives even if the exception's type is unknown here.
    data, summary, text = loads(payload)
    error: BaseException
    try:
        error = RemoteError(summary) if data is None else loads(data)
    except Exception as failure:
        error = RemoteError(
            f"{summary}; it is not raised with its own type because it cannot be rebuilt here "
            f"({type(failure).__name__}: {failure}): is the module that defines it importable in "
            "this process?"
        )
    error.__cause__ = RemoteTraceback(text)
    return error


def is_remote(error: BaseException) -> bool:
    """Return whether `error` was raised in another process and sent here in a reply."""
    return isinstance(error.__cause__, RemoteTraceback)


def portable_result(future: Future[Any], timeout: float | None = None) -> Any:
    """Return the result of `future`; never raise a remote exception that would end this program.

    A ``SystemExit``, ``KeyboardInterrupt`` or similar exception of another process is raised as a
    `RemoteError` instead.
    """
    error = future.exception(timeout)
    if error is None or isinstance(error, Exception) or not is_remote(error):
        return future.result(timeout)
    raise portable(error)


def portable(error: BaseException) -> Exception:
    """Return `error`, or a `RemoteError` for a remote exception that would end this program."""
    if isinstance(error, Exception):
        return error
    failure = RemoteError(f"the worker's code raised {error!r}")
    for note in getattr(error, "__notes__", ()):
        failure.add_note(note)
    failure.__cause__ = error.__cause__
    return failure


class _Parts:
    """Unpickles to a new exception with the type, arguments and attributes of another one.

    Arguments that cannot be pickled are replaced by their text. Such attributes are left out.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        error = self._error
        arguments = tuple(each if is_portable(each) else repr(each) for each in error.args)
        return _rebuild, (type(error), arguments, _portable_attributes(error))


def _portable_attributes(error: BaseException) -> dict[str, Any]:
    attributes = getattr(error, "__dict__", {})
    return {name: value for name, value in attributes.items() if is_portable(value)}


def _rebuild(
    kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


def _shape(error: BaseException) -> tuple[int, set[str]]:
    return len(error.args), set(getattr(error, "__dict__", ()))


def is_portable(value: Any) -> bool:
    """Return whether `value` can be pickled and unpickled."""
    try:
        loads(dumps(value))
    except BaseException:
        return False
    return True


def _traceback_text(error: BaseException, skip_frames: int) -> str:
    trace = error.__traceback__
    for _ in range(skip_frames):
        trace = trace.tb_next if trace is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as failure:
        return f"{type(error).__qualname__} (no traceback: {type(failure).__name__})\n"


def _summary(error: BaseException) -> str:
    kind = type(error)
    try:
        message = str(error)
    except BaseException:
        message = "its message cannot be shown"
    return f"{kind.__module__}.{kind.__qualname__}: {message}"
