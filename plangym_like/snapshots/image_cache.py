"""`ImageCache`: images of states that copies of an environment have been in, by their action logs.

A copy can be brought back to the state of an image at once, without replaying actions. What an
image holds depends on the family of environments (see `plangym_like.envs.box2d_images`). An image
belongs to one copy, and only to the episode that this copy has begun.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

# The images of one environment take at most this many bytes, approximately, in each process.
IMAGES_NBYTES = 64 * 2**20


class SavedImage(NamedTuple):
    """An image, the copy that it was taken of, and what else the cache of copies keeps of it."""

    cached: Any
    image: Any
    trace_digest: bytes
    changed: frozenset[tuple[int, str]]
    nbytes: int


class ImageCache:
    """Keeps the images that were used last, up to `capacity` bytes."""

    def __init__(self, capacity: int = IMAGES_NBYTES) -> None:
        self._capacity = capacity
        self._saved: OrderedDict[bytes, SavedImage] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._saved)

    def find(self, log: bytes) -> SavedImage | None:
        """Return the image of the state after `log`, if there is one."""
        saved = self._saved.get(log)
        if saved is not None:
            self._saved.move_to_end(log)
        return saved

    def add(self, log: bytes, saved: SavedImage) -> None:
        """Keep the image of the state after `log`; drop the images that were used longest ago."""
        self._remove(log)
        self._saved[log] = saved
        self._nbytes += saved.nbytes
        while self._nbytes > self._capacity and len(self._saved) > 1:
            self._remove(next(iter(self._saved)))

    def nearest(self, log: bytes) -> tuple[bytes, SavedImage | None]:
        """Return the longest prefix of `log` that has an image, and this image."""
        found = b""
        for prefix in self._saved:
            if len(prefix) > len(found) and log.startswith(prefix):
                found = prefix
        return found, self.find(found)

    def drop(self, cached: Any) -> None:
        """Drop all images of the copy `cached`."""
        for log in [log for log, saved in self._saved.items() if saved.cached is cached]:
            self._remove(log)

    def clear(self) -> None:
        """Drop all images."""
        self._saved.clear()
        self._nbytes = 0

    def _remove(self, log: bytes) -> None:
        saved = self._saved.pop(log, None)
        if saved is not None:
            self._nbytes -= saved.nbytes
