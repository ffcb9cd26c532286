"""Blocks of shared memory: nameless, lent, taken back, and never leaked."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted import descriptors

from plangym_like.execution.shared_batch import BlockPool
from plangym_like.processes.shared_memory import SharedBlock, alive, as_bytes

PAGE = mmap.PAGESIZE


def mapped() -> int:
    """Return how many blocks this process has mapped."""
    return Path("/proc/self/maps").read_text().count("plangym_like")


def test_a_lack_of_memory_is_an_error_at_once_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = descriptors()
    with pytest.raises(MemoryError, match="4096 bytes.*no space left"):
        SharedBlock(1)
    assert descriptors() == before


def test_more_than_there_is_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserving it page by page, the kernel would first kill what else runs on the machine."""
    tried: list[Any] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: tried.append(arguments))
    before = descriptors()
    with pytest.raises(MemoryError, match="1125899906842624 bytes.*only [0-9]+ bytes"):
        SharedBlock(1 << 50)
    assert not tried
    assert descriptors() == before


def test_the_bytes_outlive_the_descriptor() -> None:
    before, maps = descriptors(), mapped()
    block = SharedBlock(PAGE)
    array = as_bytes(block.memory)
    array[:] = 5
    block.close()
    block.close()
    assert block.fd == -1
    del block
    assert (array == 5).all()
    del array
    assert (descriptors(), mapped()) == (before, maps)


def lend(pool: BlockPool, nbytes: int) -> tuple[int, Any]:
    block = pool.take(nbytes)
    array = pool.lend(block)
    assert array is not None
    return block.number, array


def test_a_lent_block_comes_back_when_nothing_refers_to_it() -> None:
    pool = BlockPool()
    number, array = lend(pool, 100)
    row = array[:96].view(np.float64).reshape(3, 4)[1][::2]
    del array
    other = pool.take(100)
    assert other.number != number
    del row
    assert pool.take(100).number == number
    pool.give(other)
    pool.close()


def test_only_so_many_are_kept_and_the_others_are_freed() -> None:
    before = descriptors()
    pool = BlockPool(most_idle=2)
    blocks = [pool.take(64) for _ in range(5)]
    for block in blocks:
        pool.give(block)
    numbers = [block.number for block in blocks]
    assert alive.issuperset(numbers)
    assert pool.take(64) is blocks[3]
    pool.give(blocks[3])
    assert sum(block.fd >= 0 for block in blocks) == 2
    pool.close()
    del block, blocks
    assert descriptors() == before
    assert alive.isdisjoint(numbers)


def test_blocks_that_were_lent_when_the_process_forked_are_not_reused() -> None:
    """The forked copy may read the results in them."""
    pool = BlockPool()
    lent_before, array = lend(pool, 64)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    lent_after, other = lend(pool, 64)
    del array, other
    assert pool.take(64).number == lent_after
    assert pool.take(64).number not in (lent_before, lent_after)
    assert lent_before not in alive
    pool.close()
