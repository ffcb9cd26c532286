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
from plangym_like.states.rows import Row, StateFormat, mismatch

_MAGIC = b"PLSFILE1"
DIGEST_NBYTES = 32
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
    content, header, start = map_file(path, _MAGIC, told, state_format)
    body = np.array(np.frombuffer(content, np.uint8)[start:-DIGEST_NBYTES])
    if len(body) != header["count"] * state_format.state_nbytes:
        raise StateFormatError(f"{path} is damaged: its header states a wrong number of rows")
    return state_format.check(body.reshape(-1, state_format.state_nbytes))


def map_file(
    path: str | os.PathLike[str], magic: bytes, told: str, state_format: StateFormat
) -> tuple[mmap.mmap, dict[str, Any], int]:
    """Map a file that `write` wrote into memory, and check its digest and its header.

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
        The content, the header, and where the content begins after it.

    Raises
    ------
    StateFormatError
        The file is another one, or it is damaged.
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
    body = memoryview(content)[:-DIGEST_NBYTES]
    if hashlib.blake2b(body, digest_size=DIGEST_NBYTES).digest() != content[-DIGEST_NBYTES:]:
        raise StateFormatError(
            f"{path} is damaged or truncated: its digest does not match; copy or save it again"
        )
    start = START + struct.unpack_from("<Q", content, len(magic))[0]
    header = json.loads(content[START:start])
    if header["fingerprint"] != f"{state_format.fingerprint:016x}":
        ours = state_format.family, state_format.fingerprint_fields
        raise mismatch(f"{path} holds states", *ours, header["family"], header["meaning"])
    return content, header, start
