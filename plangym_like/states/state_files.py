"""Files of state rows: a readable header, the raw rows, and a digest.

::

    8 bytes    PLSFILE1
    8 bytes    length of the header, little-endian
    header     JSON: family, meaning, fingerprint, state_nbytes, count
    rows       count * state_nbytes bytes
    32 bytes   BLAKE2b-256 of all preceding bytes

Loading executes no code from the file, and allocates at most twice the size of the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
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
DIGEST_NBYTES = 32
_HEADER_LIMIT = 1 << 20
START = len(_MAGIC) + 8


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
    digest = hashlib.blake2b(digest_size=DIGEST_NBYTES)
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
            os.chmod(partial, stat.S_IMODE(present.st_mode))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], state_format: StateFormat) -> Row:
    """Return the rows ``(N, state_nbytes)`` in a file, after checking all of them.

    Raises
    ------
    StateFormatError
        The file is not a file of states, or it is damaged.
    StateMismatchError
        The states belong to another environment, version or configuration.
    """
    told = "a file of state rows: give a file that save_states wrote"
    content, count, _, start = map_file(path, _MAGIC, told, state_format)
    if count * state_format.state_nbytes != len(content) - start - DIGEST_NBYTES:
        raise _wrong_count(path)
    # A copy: reading mapped memory would end this process if the file became shorter.
    whole = np.fromfile(path, np.uint8)
    body = whole[: len(content) - DIGEST_NBYTES]
    verify_digest(path, whole[len(body) :].tobytes(), body.data)
    return state_format.check(body[start:].reshape(-1, state_format.state_nbytes))


def map_file(
    path: str | os.PathLike[str], magic: bytes, told: str, state_format: StateFormat
) -> tuple[mmap.mmap, int, bytes, int]:
    """Map a file that `write` wrote into memory, and check its header; the rest is not read yet.

    Writing to the memory does not change the file.

    Parameters
    ----------
    path : path
    magic : bytes
        The first 8 bytes of such files.
    told : str
        What such files are, for the message about another file.
    state_format : StateFormat
        The format that the rows in the file must have.

    Returns
    -------
    tuple
        The content, the number of rows, the header, and where the content begins after it.

    Raises
    ------
    StateFormatError
        The file is another one, or its header is damaged.
    StateMismatchError
        The rows have another format.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size < START + DIGEST_NBYTES:
            raise StateFormatError(f"{path} is not {told}")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if content[: len(magic)] != magic:
        raise StateFormatError(f"{path} is not {told}")
    (length,) = struct.unpack_from("<Q", content, len(magic))
    if length > min(_HEADER_LIMIT, len(content) - START - DIGEST_NBYTES):
        raise StateFormatError(
            f"{path} is damaged or truncated: a header of {length} bytes is too long"
        )
    text = content[START : START + length]
    return content, _checked_count(path, text, state_format), text, START + length


def verify_digest(path: str | os.PathLike[str], digest: bytes, *parts: bytes | memoryview) -> None:
    """Raise `StateFormatError` unless `digest` is that of the `parts` of the file."""
    found = hashlib.blake2b(digest_size=DIGEST_NBYTES)
    for part in parts:
        found.update(part)
    if found.digest() != digest:
        raise StateFormatError(
            f"{path} is damaged or truncated: its digest does not match; copy or save it again"
        )


def _checked_count(path: str | os.PathLike[str], text: bytes, state_format: StateFormat) -> int:
    """Return the number of rows from the header `text`, after checking the rows' format."""
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
