"""Send exceptions from a worker to its owner.

The worker tries these forms in order, and packs an exception in the first form that works. The
owner rebuilds it, with the remote traceback as its ``__cause__``:

``group``    an exception group: its type, message and picklable attributes, and each member packed
             on its own
``whole``    the exception itself, if it can be pickled and unpickled as its own type
``parts``    its type, arguments and picklable attributes; ``__init__`` is not called
``name``     text only: a `RemoteError` that names the type
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
    for form in (_as_group, _as_whole, _as_parts):
        try:
            name, content = form(error)
            data = dumps(content)
            if type(_rebuild(name, data)) is type(error):
                return dumps((name, data, summary, text))
        except BaseException:  # a form that does not work for this exception: try the next
            continue
    return dumps(("name", b"", summary, text))


def unpack_exception(payload: bytes | memoryview) -> BaseException:
    """Return the exception packed in `payload`, with a `RemoteTraceback` as its ``__cause__``.

    Examples
    --------
    >>> error = unpack_exception(pack_exception(KeyError("pole")))
    >>> error, type(error.__cause__).__name__
    (KeyError('pole'), 'RemoteTraceback')
    """
    # The text is packed separately: it arrives even if the exception's type is unknown here.
    name, data, summary, text = loads(payload)
    error: BaseException
    if name == "name":
        error = RemoteError(summary)
    else:
        try:
            error = _rebuild(name, data)
        except Exception as failure:
            error = RemoteError(
                f"{summary}; it is not raised with its own type because it cannot be rebuilt here "
                f"({type(failure).__name__}: {failure}): is the module that defines it importable "
                "in this process?"
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


def _as_group(error: BaseException) -> tuple[str, Any]:
    if not isinstance(error, BaseExceptionGroup):
        raise TypeError("not a group")
    members = [pack_exception(member) for member in error.exceptions]
    return "group", (type(error), error.message, members, _portable_attributes(error))


def _as_whole(error: BaseException) -> tuple[str, Any]:
    copy = loads(dumps(error))
    if type(copy) is not type(error) or _shape(copy) != _shape(error):
        raise TypeError("changed on the way")
    return "whole", error


def _as_parts(error: BaseException) -> tuple[str, Any]:
    arguments = tuple(
        argument if is_portable(argument) else repr(argument) for argument in error.args
    )
    return "parts", (type(error), arguments, _portable_attributes(error))


def _rebuild(name: str, data: bytes) -> BaseException:
    content = loads(data)
    if name == "whole":
        whole: BaseException = content
        return whole
    if name == "parts":
        kind, arguments, attributes = content
        error: BaseException = kind.__new__(kind, *arguments)
        error.args = arguments
    else:
        kind, message, members, attributes = content
        error = kind.__new__(kind, message, [unpack_exception(member) for member in members])
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


def _portable_attributes(error: BaseException) -> dict[str, Any]:
    attributes = getattr(error, "__dict__", {})
    return {name: value for name, value in attributes.items() if is_portable(value)}


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
