"""Files of state rows: a readable header, the raw rows, and a digest.

::

    8 bytes    PLSFILE1
    8 bytes    length of the header, little-endian
    header     JSON: family, meaning, fingerprint, state_nbytes, count
    rows       count * state_nbytes bytes
    32 bytes   BLAKE2b-256 of all preceding bytes

Loading executes no code from the file, and allocates no more memory than the size of the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from plangym_like.errors import StateFormatError
from plangym_like.states.rows import Row, StateFormat, fingerprint_of, mismatch

_MAGIC = b"PLSFILE1"
_DIGEST_NBYTES = 32
_HEADER_LIMIT = 1 << 20
_START = len(_MAGIC) + 8
_PIECE = 1 << 20


def save(path: str | os.PathLike[str], state_format: StateFormat, rows: Row) -> None:
    """Write `rows` ``(N, state_nbytes)`` to a file, either completely or not at all.

    An existing file is replaced, and keeps its permissions. If `path` is a symbolic link, the file
    that it points to is replaced. Pipes and devices are written to directly.
    """
    header = json.dumps(describe(state_format, len(rows))).encode()
    body = np.ascontiguousarray(rows).data
    parts = (_MAGIC, struct.pack("<Q", len(header)), header, body)
    write(path, parts)


def describe(state_format: StateFormat, count: int) -> dict[str, Any]:
    """Return the header of a file with `count` rows."""
    return {
        "family": state_format.family,
        "meaning": state_format.fingerprint_fields,
        "fingerprint": f"{state_format.fingerprint:016x}",
        "state_nbytes": state_format.state_nbytes,
        "count": count,
    }


def write(path: str | os.PathLike[str], parts: Iterable[Any]) -> None:
    """Write the buffers `parts` and their digest; see `save`."""
    digest = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
    with replacing(path) as file:
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(digest.digest())


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` if the block ends without an error.

    See `save` for links, permissions and devices.
    """
    target = Path(path)
    try:
        present = os.stat(target)
    except FileNotFoundError:
        present = None
    if present is not None and not stat.S_ISREG(present.st_mode):
        with open(target, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(target.parent))
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        # While it is written, only the owner may read what replaces a file of restricted access.
        mode = 0o666 if present is None else 0o600
        # Without O_BINARY, Windows would change bytes that look like ends of lines.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(partial, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
        if present is not None:
            if hasattr(os, "chown"):  # Windows does not have it
                with contextlib.suppress(PermissionError):
                    os.chown(partial, present.st_uid, present.st_gid)
            os.chmod(partial, stat.S_IMODE(present.st_mode))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], state_format: StateFormat) -> Row:
    """Return the rows ``(N, state_nbytes)`` in a file, after checking all of them.

    The header is checked before the rows are read.

    Raises
    ------
    StateFormatError
        The file is not a file of states, or it is damaged.
    StateMismatchError
        The states belong to another environment, version or configuration.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        # The number of bytes after the first `_START` bytes; ``None`` for a pipe.
        room = status.st_size - _START if stat.S_ISREG(status.st_mode) else None
        start = file.read(_START)
        short = room is not None and room < _DIGEST_NBYTES
        if len(start) < _START or short or not start.startswith(_MAGIC):
            raise StateFormatError(
                f"{path} is not a file of state rows: give a file that save_states wrote"
            )
        (length,) = struct.unpack_from("<Q", start, len(_MAGIC))
        if length > _HEADER_LIMIT or (room is not None and length > room - _DIGEST_NBYTES):
            raise StateFormatError(
                f"{path} is damaged or truncated: a header of {length} bytes is too long"
            )
        text = file.read(length)
        nbytes = check_header(path, text, state_format) * state_format.state_nbytes
        if room is not None and nbytes != room - length - _DIGEST_NBYTES:
            raise _wrong_count(path)
        content = _read(file, nbytes, known=room is not None)
        sealed = file.read(_DIGEST_NBYTES + 1)
    if len(content) != nbytes:
        raise _wrong_count(path)
    digest = hashlib.blake2b(start + text, digest_size=_DIGEST_NBYTES)
    digest.update(content.data)
    if digest.digest() != sealed:
        raise StateFormatError(
            f"{path} is damaged or truncated: its digest does not match; copy or save it again"
        )
    return state_format.check(content.reshape(-1, state_format.state_nbytes))


def check_header(path: str | os.PathLike[str], text: bytes, state_format: StateFormat) -> int:
    """Return the number of rows from the header `text`, after checking the rows' format.

    Raises
    ------
    StateFormatError
        The header is damaged.
    StateMismatchError
        The rows have another format.
    """
    header = _header(path, text)
    if header["fingerprint"] != f"{state_format.fingerprint:016x}":
        raise mismatch(
            f"{path} holds states",
            state_format.family,
            state_format.fingerprint_fields,
            header["family"],
            header["meaning"],
        )
    count = header["count"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise _wrong_count(path)
    return count


def _read(file: BinaryIO, nbytes: int, *, known: bool) -> Row:
    """Read at most `nbytes` bytes.

    If `known` is false, the file may be shorter, so memory is allocated only as data arrives.
    """
    if known:
        content = np.empty(nbytes, np.uint8)
        return content[: file.readinto(content.data)]  # type: ignore[attr-defined]
    pieces = bytearray()
    while len(pieces) < nbytes:
        piece = file.read(min(_PIECE, nbytes - len(pieces)))
        if not piece:
            break
        pieces += piece
    return np.frombuffer(pieces, np.uint8)


def _wrong_count(path: str | os.PathLike[str]) -> StateFormatError:
    return StateFormatError(
        f"{path} is damaged or truncated: its header states a wrong number of rows"
    )


def _header(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
        found = {
            "family": str(header["family"]),
            "meaning": str(header["meaning"]),
            "fingerprint": header["fingerprint"],
            "count": header["count"],
        }
        right = fingerprint_of(found["family"], int(header["state_nbytes"]), found["meaning"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StateFormatError(f"{path} is damaged: its header cannot be read") from error
    if found["fingerprint"] != f"{right:016x}":
        raise StateFormatError(f"{path} is damaged: its header contradicts itself")
    return found
