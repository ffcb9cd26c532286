"""ScreenResizer: the bytes are those of OpenCV, for any sequence of screens."""

import numpy as np
import pytest

from plangym_like.envs.screen_resizer import ScreenResizer, blocks_of

cv2 = pytest.importorskip("cv2", reason="screens are resized by opencv-python")


@pytest.mark.parametrize(
    ("shape", "size", "blocks"),
    [
        ((210, 160), (84, 84), (5, 2)),
        ((210, 160, 3), (84, 84), (5, 2)),
        ((210, 160), (60, 40), (21, 4)),
        ((210, 160), (80, 105), (2, 1)),
        # Those are resized as a whole: the ratio of rows is no exact number, there are too few
        # blocks, a block is not a multiple of 8 bytes, and the screen grows.
        ((210, 160), (64, 63), None),
        ((250, 160), (84, 84), None),
        ((210, 41), (20, 84), None),
        ((210, 160), (160, 420), None),
    ],
)
def test_results_are_those_of_opencv(
    shape: tuple[int, ...], size: tuple[int, int], blocks: tuple[int, int] | None
) -> None:
    assert blocks_of(shape, size) == blocks
    rng, resizer = np.random.default_rng(1), ScreenResizer()
    screen = np.zeros(shape, np.uint8)
    returned = []
    for number in range(60):
        if number % 20 == 10:
            screen = rng.integers(0, 256, shape, dtype=np.uint8)
        elif number % 3:
            screen[rng.integers(shape[0]), rng.integers(shape[1])] += 1
        wanted = cv2.resize(screen, size, interpolation=cv2.INTER_AREA)
        found = resizer.resize(screen, size)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
        returned.append((found, wanted))
    for found, wanted in returned:
        np.testing.assert_array_equal(found, wanted)


def test_screens_and_sizes_may_vary() -> None:
    rng, resizer = np.random.default_rng(2), ScreenResizer()
    for shape, size in [((210, 160), (84, 84)), ((210, 160), (42, 42)), ((250, 160), (84, 84))] * 2:
        wide = rng.integers(0, 256, (*shape, 2), dtype=np.uint8)
        for screen in (wide[..., 0], np.ascontiguousarray(wide[..., 0])):
            wanted = cv2.resize(screen, size, interpolation=cv2.INTER_AREA)
            np.testing.assert_array_equal(resizer.resize(screen, size), wanted)


def test_a_call_that_failed_leaves_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, resizer = np.random.default_rng(3), ScreenResizer()
    one, other = rng.integers(0, 256, (2, 210, 160), dtype=np.uint8)
    resizer.resize(one, (84, 84))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(cv2, "resize", interrupted)
        resizer.resize(other, (84, 84))
    wanted = cv2.resize(other, (84, 84), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(resizer.resize(other, (84, 84)), wanted)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
