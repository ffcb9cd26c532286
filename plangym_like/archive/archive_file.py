"""Files of archives: a readable header, arrays, and a digest.

::

    8 bytes    PLSARCH1
    8 bytes    length of the header, little-endian
    header     JSON, as in a file of states, with one more key: `arrays` lists the name, dtype and
               shape of each array
    arrays     one after the other, each aligned to 64 bytes
    32 bytes   BLAKE2b-256 of all preceding bytes

The arrays are mapped into memory, not read, so unused parts need no memory. Loading a file never
executes code from it.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.states import state_files
from plangym_like.states.rows import StateFormat

_MAGIC = b"PLSARCH1"
_KIND = "an archive of states: give a file that StateArchive.save wrote"
_ALIGNMENT = 64


def save(
    path: str | os.PathLike[str],
    state_format: StateFormat,
    count: int,
    arrays: Mapping[str, Sequence[NDArray[Any]]],
    magic: bytes = _MAGIC,
) -> None:
    """Write an archive of `count` nodes to a file; see `state_files.save`.

    Each of `arrays` is given as a list of parts, which are written one after the other. Files of
    another kind begin with another `magic`, 8 bytes.
    """
    described = [
        (name, parts[0].dtype.str, (sum(map(len, parts)), *parts[0].shape[1:]))
        for name, parts in arrays.items()
    ]
    header = {**state_files.describe(state_format, count), "arrays": described}
    text = json.dumps(header).encode()
    text += b" " * (-(state_files.START + len(text)) % _ALIGNMENT)
    written: list[Any] = [magic, struct.pack("<Q", len(text)), text]
    for parts in arrays.values():
        written += [np.ascontiguousarray(part).reshape(-1).view(np.uint8).data for part in parts]
        written.append(bytes(-sum(part.nbytes for part in parts) % _ALIGNMENT))
    state_files.write(path, written)


def load(
    path: str | os.PathLike[str],
    state_format: StateFormat,
    magic: bytes = _MAGIC,
    told: str = _KIND,
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the number of nodes in a file, and the file's arrays by name; `told` names its kind.

    Writing to the arrays does not change the file. The whole file is read once, to verify its
    digest. The errors are listed in `StateArchive.load`.
    """
    content, header, start = state_files.map_file(path, magic, told, state_format)
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        size = math.prod(shape)
        arrays[name] = np.frombuffer(content, np.dtype(dtype), size, start).reshape(shape)
        start += -(-arrays[name].nbytes // _ALIGNMENT) * _ALIGNMENT
    return header["count"], arrays
