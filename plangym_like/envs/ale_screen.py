"""What an emulator shows, in colour: only what has changed is converted.

ALE converts all 33,600 pixels of a frame byte by byte, which takes an eighth of a transition. Most
of them are as they were in the frame before, also where that was another state of the same game.
"""

from __future__ import annotations

import numpy as np
from ale_py import ALEInterface
from numpy.typing import NDArray

# The emulator gives a byte for each pixel. Eight of them, a word, are compared at once.
_WORD = 8
# With one word in so many changed, ALE's own conversion is as fast. It is then used for some frames
# on end.
_FEW, _BLIND_FRAMES = 13, 16
# Two pixels are looked up at once. Their colours take six bytes of eight; the last two are zero.
_PAIR = np.dtype({"names": ["rgb"], "formats": ["V6"], "offsets": [0], "itemsize": 8})
_UNKNOWN = np.uint64((1 << 64) - 1)


class Screen:
    """The picture of one emulator.

    Parameters
    ----------
    ale : ALEInterface
        With a game loaded.

    Attributes
    ----------
    picture : array ``(height, width, 3) uint8``
        What was drawn last; nobody else writes to it.
    """

    def __init__(self, ale: ALEInterface) -> None:
        self._ale = ale
        height, width = ale.getScreenDims()
        self.picture = np.zeros((height, width, 3), np.uint8)
        frame, drawn = np.zeros((2, height, width), np.uint8)
        self._frame, self._drawn = frame, drawn
        self._words, self._drawn_words = (x.reshape(-1).view(np.uint64) for x in (frame, drawn))
        self._changed = np.empty(len(self._words), bool)
        self._most = len(self._words) // _FEW
        self._pairs = self.picture.reshape(-1).view("V6").reshape(-1, _WORD // 2)
        self._table = np.full(1 << 16, _UNKNOWN)
        self._palette = np.zeros((256, 3), np.uint8)
        self._known = np.empty(0, np.uint8)
        self._blind = 1

    def draw(self) -> NDArray[np.uint8]:
        """Bring `picture` up to date with the emulator, and return it."""
        if self._blind:
            self._blind -= 1
            self._draw_all(remember=not self._blind)
            return self.picture
        self._ale.getScreen(self._frame)
        (places,) = np.not_equal(self._words, self._drawn_words, out=self._changed).nonzero()
        if len(places) > self._most:
            self._blind = _BLIND_FRAMES
            self._draw_all()
        elif len(places):
            words = self._words[places]
            colours = self._table.take(words.view(np.uint16))
            if colours.max() == _UNKNOWN:
                self._draw_all(remember=True)
                self._learn()
            else:
                self._drawn_words[places] = words
                self._pairs[places] = colours.view(_PAIR)["rgb"].reshape(-1, _WORD // 2)
        return self.picture

    def _draw_all(self, *, remember: bool = False) -> None:
        """Have ALE draw; `remember`: what is drawn, so that the next frame may be compared."""
        self._ale.getScreenRGB(self.picture)
        if remember:
            self._ale.getScreen(self._drawn)

    def _learn(self) -> None:
        """Learn which byte is which colour from what is drawn, and all pairs of those known."""
        shown, places = np.unique(self._drawn, return_index=True)
        self._palette[shown] = self.picture.reshape(-1, 3)[places]
        known = self._known = np.union1d(self._known, shown)
        bytes_, colours = (np.zeros((len(known), len(known), n), np.uint8) for n in (2, 8))
        bytes_[..., 0], bytes_[..., 1] = known[:, None], known
        colours[..., :3], colours[..., 3:6] = self._palette[known][:, None], self._palette[known]
        self._table[bytes_.view(np.uint16)] = colours.view(np.uint64)
