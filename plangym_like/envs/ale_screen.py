"""The colour image of an emulator's screen: only changed pixels are converted.

ALE converts all 33,600 pixels of a frame byte by byte, which takes an eighth of the time of a
transition. Most pixels are the same as in the previously drawn frame, even if that frame belonged
to another state of the same game.
"""

from __future__ import annotations

import numpy as np
from ale_py import ALEInterface
from numpy.typing import NDArray

# The emulator provides a byte for each pixel. Pixels are compared eight at a time, as one word, and
# looked up in pairs. `_UNKNOWN` marks pairs whose colours have not been learned yet; a pair that
# really has these colours is drawn by ALE.
_UNKNOWN = np.frombuffer(b"\x01\x02\x03\x05\x07\x0b", "V6")
# If more than one word in 11 has changed, ALE's own conversion is as fast. It is then used for this
# frame and the next 16.
_FEW, _BLIND_FRAMES = 11, 16


class Screen:
    """The colour image of one emulator's screen.

    Parameters
    ----------
    ale : ALEInterface
        The emulator, with a game loaded.

    Attributes
    ----------
    image : array ``(height, width, 3) uint8``
        The image that was drawn last; only this class writes to it.
    """

    def __init__(self, ale: ALEInterface) -> None:
        self._ale = ale
        shape = ale.getScreenDims()
        self.image = np.zeros((*shape, 3), np.uint8)
        self._frame, self._drawn = np.zeros((2, *shape), np.uint8)
        self._frame_words, self._drawn_words = _words(self._frame), _words(self._drawn)
        self._image_words = self.image.reshape(-1).view("V24")
        self._changed = np.empty(len(self._frame_words), bool)
        self._most = len(self._frame_words) // _FEW
        self._looks = np.repeat(_UNKNOWN, 1 << 16)
        self._palette = np.zeros((256, 3), np.uint8)
        self._known = np.empty(0, np.uint8)
        self._blind = 1

    def draw(self) -> NDArray[np.uint8]:
        """Update `image` to show the emulator's screen, and return it."""
        if self._blind:
            self._draw_all(self._blind - 1)
            return self.image
        self._ale.getScreen(self._frame)
        words = self._frame_words
        (places,) = np.not_equal(words, self._drawn_words, out=self._changed).nonzero()
        if len(places) > self._most:
            self._draw_all(_BLIND_FRAMES)
        elif len(places):
            looks = self._looks.take(words[places].view(np.uint16))
            if _UNKNOWN.tobytes() in looks.tobytes():
                self._draw_all(0)
                self._learn()
            else:
                self._image_words[places] = looks.view("V24")
                self._frame, self._drawn = self._drawn, self._frame
                self._frame_words, self._drawn_words = self._drawn_words, words
        return self.image

    def _draw_all(self, blind: int) -> None:
        """Let ALE convert all pixels of this frame, and later those of the next `blind` frames.

        If `blind` is 0, keep the screen's bytes, so that the next screen can be compared with them.
        """
        # If Ctrl-C interrupts the next lines, the next frame is converted as a whole.
        self._blind = 1
        self._ale.getScreenRGB(self.image)
        if not blind:
            self._ale.getScreen(self._drawn)
        self._blind = blind

    def _learn(self) -> None:
        """Learn which colours the screen's bytes stand for; update the table of colour pairs."""
        shown, places = np.unique(self._drawn, return_index=True)
        self._palette[shown] = self.image.reshape(-1, 3)[places]
        known = self._known = np.union1d(self._known, shown)
        pairs = np.stack(np.meshgrid(known, known), axis=-1)
        looks = self._palette[pairs].reshape(len(known), -1).view("V6")
        self._looks[pairs.reshape(len(known), -1).view(np.uint16)] = looks


def _words(frame: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return frame.reshape(-1).view(np.uint64)
