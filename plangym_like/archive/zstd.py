"""Zstandard, from the standard library (Python 3.14 or later) or the package `zstandard`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from plangym_like.support.lazy_imports import needs_extra


class Zstd(NamedTuple):
    """The functions of the installed compression library.

    Attributes
    ----------
    compress : callable
        Returns a compressed frame, which also stores the original size and a checksum.
    decompress : callable
        Returns the bytes of a frame.
    size : callable
        Returns the original size in bytes, as stated in a frame; -1 if none is stated.
    errors : tuple of exception classes
        The exceptions that `decompress` and `size` raise for a damaged frame, and `ValueError`.
    """

    compress: Callable[[Any], bytes]
    decompress: Callable[[Any], bytes]
    size: Callable[[Any], int]
    errors: tuple[type[Exception], ...]


def load_zstd(level: int) -> Zstd:
    """Return the functions of the installed library; `compress` uses `level`.

    Raises
    ------
    MissingExtraError
        No library is installed.
    """
    if sys.version_info >= (3, 14):
        return _standard(level)
    with needs_extra("StateArchive needs zstandard", "archive"):
        import zstandard
    return Zstd(
        zstandard.ZstdCompressor(level=level, write_checksum=True).compress,
        zstandard.ZstdDecompressor().decompress,
        zstandard.frame_content_size,
        (zstandard.ZstdError, ValueError),
    )


def _standard(level: int) -> Zstd:
    import importlib

    zstd: Any = importlib.import_module("compression.zstd")
    parameters = zstd.CompressionParameter
    options = {parameters.compression_level: level, parameters.checksum_flag: 1}

    def size(frame: Any) -> int:
        known = zstd.get_frame_info(frame).decompressed_size
        return -1 if known is None else int(known)

    return Zstd(
        lambda data: bytes(zstd.compress(data, options=options)),
        zstd.decompress,
        size,
        (zstd.ZstdError, EOFError, ValueError),
    )
