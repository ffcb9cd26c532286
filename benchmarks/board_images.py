"""Draws positions of Connect Four, and what a search thinks of them, for the gallery."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROWS, COLUMNS = 6, 7
# Colours of free cells and of the two players; those of the board, the paper and the text.
CELLS = ("#f4f6f8", "#d93a34", "#f2c230")
BOARD, PAPER, INK, BAR = "#2b5ea8", "#ffffff", "#24292f", "#9aa4ad"
# In pixels: a cell, the line of text above the board, the bars below it.
CELL, HEAD, FOOT = 44, 34, 52
FINE = 3  # everything is drawn so many times as large first, so that edges are smooth


def cells_after(moves: Any) -> Any:
    """Return the cells ``(6, 7)`` after `moves`: 0 is free, 1 and 2 are the players' stones."""
    cells = np.zeros((ROWS, COLUMNS), int)
    for turn, column in enumerate(moves):
        cells[np.flatnonzero(cells[:, column] == 0)[-1], column] = 1 + turn % 2
    return cells


def four_in_a_row(cells: Any) -> list[tuple[int, int]]:
    """Return the cells of all rows of four equal stones."""
    found = set()
    for row, column in np.ndindex(ROWS, COLUMNS):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            line = [(row + down * step, column + right * step) for step in range(4)]
            if 0 <= line[-1][0] < ROWS and 0 <= line[-1][1] < COLUMNS:
                colours = {int(cells[cell]) for cell in line}
                if len(colours) == 1 and colours != {0}:
                    found |= {*line}
    return sorted(found)


def draw(moves: Any, text: str, shares: Any = None, player: int | None = None) -> Any:
    """Draw the position after `moves` as an image ``(H, W, 3)``.

    Parameters
    ----------
    moves : sequence of int
        The columns that were played.
    text : str
        The line above the board.
    shares : array (7,), optional
        Bars below the columns, from 0 to 1.
    player : int, optional
        The player whose stone is shown before the text, from 0.
    """
    width, height = COLUMNS * CELL, HEAD + ROWS * CELL + FOOT
    image = Image.new("RGB", (FINE * width, FINE * height), PAPER)
    pen = ImageDraw.Draw(image)

    def disc(x: float, y: float, radius: float, **options: Any) -> None:
        ends = (x - radius, y - radius, x + radius, y + radius)
        pen.ellipse([FINE * end for end in ends], **options)

    if player is not None:
        disc(HEAD / 2, HEAD / 2, 9, fill=CELLS[1 + player])
    font = ImageFont.load_default(FINE * 14)
    pen.text((FINE * HEAD, FINE * HEAD / 2), text, INK, font, anchor="lm")
    ends = (0, HEAD, width, HEAD + ROWS * CELL)
    pen.rounded_rectangle([FINE * end for end in ends], FINE * 10, fill=BOARD)
    cells = cells_after(moves)
    marked = four_in_a_row(cells)
    if len(moves) and not marked:
        marked = [(int(np.flatnonzero(cells[:, moves[-1]])[0]), moves[-1])]
    for row, column in np.ndindex(ROWS, COLUMNS):
        centre = (column + 0.5) * CELL, HEAD + (row + 0.5) * CELL
        disc(*centre, 17, fill=CELLS[cells[row, column]])
        if (row, column) in marked:
            disc(*centre, 13, outline=PAPER, width=FINE * 3)
    for column, share in enumerate([] if shares is None else shares):
        left, top = column * CELL + 8, height - 16 - share * (FOOT - 22)
        ends = (left, top, left + CELL - 16, height - 16)
        colour = BAR if player is None else CELLS[1 + player]
        pen.rectangle([FINE * end for end in ends], fill=colour)
        pen.text(
            (FINE * (column + 0.5) * CELL, FINE * (height - 8)),
            f"{share:.0%}",
            INK,
            ImageFont.load_default(FINE * 10),
            anchor="mm",
        )
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
