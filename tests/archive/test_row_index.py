"""The hash table of an archive, and its hashes."""

import numpy as np

from plangym_like.archive.row_index import RowIndex, hash_rows


def test_the_table_with_many_equal_slots() -> None:
    """Hashes whose low bits are equal share their first slot."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**20, 5000).astype(np.uint64) << np.uint64(24)
    index = RowIndex()
    for stop in (10, 11, 2000, 5000):
        known = hashes[:stop]
        wanted = np.concatenate([known, known + np.uint64(1)])
        first = {value: node for node, value in reversed(list(enumerate(known.tolist())))}
        expected = [first.get(value, -1) for value in wanted.tolist()]
        assert index.find(known, wanted).tolist() == expected


def test_hashes_differ_if_one_bit_does() -> None:
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 256, 800).astype(np.uint8)
    bits = np.unpackbits(reference) ^ np.eye(6400, dtype=np.uint8)
    rows = np.packbits(bits, axis=1)
    hashes = hash_rows(np.concatenate([reference[None], rows]), reference)
    assert len(np.unique(hashes)) == 6401 and hashes[0] == 0
    for shift in (0, 16, 32, 48):  # every part of a hash is as good
        assert len(np.unique((hashes >> np.uint64(shift)) & np.uint64(0xFFFF))) > 5800
