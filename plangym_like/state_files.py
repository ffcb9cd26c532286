"""State rows on disk: raw rows behind a readable header, sealed by a digest.

::

    8 bytes    PLSFILE1
    8 bytes    length of the header, little-endian
    header     JSON: family, meaning, fingerprint, state_nbytes, count
    rows       count * state_nbytes bytes
    32 bytes   BLAKE2b-256 of everything before

Nothing in a file is ever executed, and nothing is allocated that the file's own size does not bear
out.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from plangym_like.errors import StateFormatError, StateMismatchError
from plangym_like.states import Row, StateFormat

_MAGIC = b"PLSFILE1"
_DIGEST_NBYTES = 32
_HEADER_LIMIT = 1 << 20


def save(path: str | os.PathLike[str], state_format: StateFormat, rows: Row) -> None:
    """Write `rows` ``(N, state_nbytes)``; the file appears whole or not at all."""
    header = json.dumps(
        {
            "family": state_format.family,
            "meaning": state_format.meaning,
            "fingerprint": f"{state_format.fingerprint:016x}",
            "state_nbytes": state_format.state_nbytes,
            "count": len(rows),
        }
    ).encode()
    digest = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            body = np.ascontiguousarray(rows).data
            parts = (_MAGIC, struct.pack("<Q", len(header)), header, body)
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], state_format: StateFormat) -> Row:
    """Return the rows ``(N, state_nbytes)`` in a file, every one of them checked.

    Raises
    ------
    StateFormatError
        No file of states, or a damaged one.
    StateMismatchError
        States of another environment, version or configuration.
    """
    content = Path(path).read_bytes()
    start = len(_MAGIC) + 8
    if len(content) < start + _DIGEST_NBYTES or not content.startswith(_MAGIC):
        raise StateFormatError(f"{path} is not a file of state rows")
    digest = hashlib.blake2b(memoryview(content)[:-_DIGEST_NBYTES], digest_size=_DIGEST_NBYTES)
    if digest.digest() != content[-_DIGEST_NBYTES:]:
        raise StateFormatError(f"{path} is damaged or truncated: its digest does not match")
    (length,) = struct.unpack_from("<Q", content, len(_MAGIC))
    body = len(content) - start - _DIGEST_NBYTES
    if length > min(body, _HEADER_LIMIT):
        raise StateFormatError(f"{path} is damaged: its header would not fit")
    header = _header(path, content[start : start + length])
    if header["fingerprint"] != f"{state_format.fingerprint:016x}":
        expected = f"{state_format.family} {state_format.meaning}"
        got = f"{header['family']} {header['meaning']}"
        raise StateMismatchError(
            f"{path} holds states of another environment, version or configuration: "
            f"expected {expected}, got {got}",
            expected,
            got,
        )
    count = header["count"]
    nbytes = body - length
    if not isinstance(count, int) or count < 0 or count * state_format.state_nbytes != nbytes:
        raise StateFormatError(f"{path} is damaged: it does not hold the rows that it announces")
    rows = np.frombuffer(content, np.uint8, nbytes, start + length)
    return state_format.check(rows.reshape(count, state_format.state_nbytes).copy())


def _header(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
        return {
            "family": str(header["family"]),
            "meaning": str(header["meaning"]),
            "fingerprint": header["fingerprint"],
            "count": header["count"],
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateFormatError(f"{path} is damaged: its header cannot be read") from error
