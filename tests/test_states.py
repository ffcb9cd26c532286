"""State rows and files of them: what is accepted, what is refused, and in which words."""

import os
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same, reached
from hypothesis import given, settings
from hypothesis import strategies as st
from usual import first_of

import plangym_like
from plangym_like.errors import (
    StateError,
    StateFormatError,
    StateMismatchError,
)
from plangym_like.states import state_files
from plangym_like.states.rows import HEADER_NBYTES, StateFormat, padded

MEANING = {"id": "Game-v1", "version": "1.0"}
PLAIN = StateFormat("TEST", MEANING, 50)
SUMMED = StateFormat("SUMM", MEANING, 200, checksum=True)
VARIABLE = StateFormat("VARY", MEANING, 64, checksum=True, variable=True)
FORMATS = [PLAIN, SUMMED, VARIABLE]
NAMES = [state_format.family for state_format in FORMATS]


def shorten(row: np.ndarray, nbytes: int) -> None:
    """Let `row` hold `nbytes` of payload, and zeros behind them."""
    row[16:24].view("<u8")[0] = nbytes
    row[HEADER_NBYTES + nbytes :] = 0


def rows_of(state_format: StateFormat, count: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, state_format.state_nbytes), np.uint8)
    rows[:, :HEADER_NBYTES] = state_format.header_bytes
    rows[:, HEADER_NBYTES:] = rng.integers(0, 256, (count, state_format.payload_nbytes))
    if state_format.variable:
        for row in rows:
            shorten(row, int(rng.integers(0, state_format.payload_nbytes + 1)))
    state_format.seal(rows)
    return rows


# Layout


def test_the_header_is_what_the_documentation_says():
    row = rows_of(SUMMED, 1)[0]
    assert row.dtype == np.uint8 and row.flags.c_contiguous
    assert row[:4].tobytes() == b"PLS1"
    assert row[4:8].tobytes() == b"SUMM"
    fingerprint, length, checksum = row[8:32].view("<u8").tolist()
    assert fingerprint == SUMMED.fingerprint
    assert length == SUMMED.payload_nbytes == 200
    assert checksum != 0
    assert len(row) == SUMMED.state_nbytes == HEADER_NBYTES + 200
    assert [padded(n) for n in (0, 1, 8, 9)] == [0, 8, 8, 16] and PLAIN.payload_nbytes == 56


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("words", [0, 1, 3, 4, 7, 12, 31, 40])
def test_many_rows_have_the_checksums_that_each_has_alone(words: int, variable: bool) -> None:
    each = StateFormat("SUMM", MEANING, 8 * words, checksum=True, variable=variable)
    rows = rows_of(each, 400)
    alone = rows.copy()
    for row in alone:
        each.seal_row(row)
    assert (rows == alone).all()
    rows[300, -1 if words and not variable else 24] ^= 1
    with pytest.raises(StateFormatError, match="row 300 is damaged: its checksum"):
        each.check(rows)


def test_a_checksum_is_that_of_the_bytes_that_are_used() -> None:
    row = rows_of(VARIABLE)[0]
    shorten(row, 9)
    VARIABLE.seal_row(row)
    short = row.copy()
    short[HEADER_NBYTES + 8] ^= 1
    row[HEADER_NBYTES + 9] ^= 1
    assert VARIABLE.check_row(row) is row and len(VARIABLE.check(row)) == 1
    for check in (VARIABLE.check_row, VARIABLE.check):
        with pytest.raises(StateFormatError, match="checksum"):
            check(short)


@pytest.mark.parametrize(
    "other",
    [
        StateFormat("TEST", {**MEANING, "version": "1.1"}, 50),
        StateFormat("TSET", MEANING, 50),
        StateFormat("TEST", MEANING, 58),
        StateFormat("TEST", {**MEANING, "more": None}, 50),
    ],
)
def test_any_change_of_meaning_changes_the_fingerprint(other):
    assert other != PLAIN
    assert other.fingerprint != PLAIN.fingerprint


# Rows that are accepted


@pytest.mark.parametrize("state_format", FORMATS, ids=NAMES)
def test_rows_are_taken_in_every_shape_of_many(state_format):
    rows = rows_of(state_format)
    for given_rows in (rows, list(rows), tuple(rows), rows[::-1][::-1]):
        assert_same(state_format.check(given_rows), rows)
    for one in (rows[2], rows[2:3], [rows[2]]):
        assert_same(state_format.check(one), rows[2:3])
    assert_same(state_format.check(rows[::2]), rows[::2].copy())
    assert_same(state_format.check(np.asfortranarray(rows)), rows)
    assert_same(state_format.check(rows[:0]), rows[:0])
    objects = np.empty(5, object)
    objects[:] = list(rows)
    assert_same(state_format.check(objects), rows)


@pytest.mark.parametrize("state_format", FORMATS, ids=NAMES)
def test_rows_are_taken_at_any_address(state_format):
    rows = rows_of(state_format)
    for shift in range(1, 8):
        memory = np.zeros(rows.size + 8, np.uint8)
        view = memory[shift : shift + rows.size].reshape(rows.shape)
        view[:] = rows
        assert_same(state_format.check(view), rows)


# Rows that are refused


@pytest.mark.parametrize("state_format", FORMATS, ids=NAMES)
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda rows: None, "None"),
        (lambda rows: 3, "int"),
        (lambda rows: "states", "dtype <U1"),
        (lambda rows: [rows[0], None], "of class list"),
        (lambda rows: [rows[0], rows[1][:-8]], "equal width"),
        (lambda rows: [], "of class list"),
        (lambda rows: rows.astype(np.float32), "float32"),
        (lambda rows: rows.view(np.int8), "int8"),
        (lambda rows: rows.tolist(), "int64"),
        (lambda rows: rows[:, :31], "bytes"),
        (lambda rows: rows[0, :0], "bytes"),
        (lambda rows: rows[None], "shape"),
        (lambda rows: np.zeros_like(rows), "row 0 is damaged: its header"),
    ],
)
def test_what_is_no_state_is_malformed(state_format, wrong, told):
    with pytest.raises(StateFormatError, match=told):
        state_format.check(wrong(rows_of(state_format)))


def test_rows_of_another_meaning_say_expected_and_got():
    other = StateFormat("TEST", {**MEANING, "version": "0.9"}, 50)
    rows = np.concatenate([rows_of(PLAIN, 3), rows_of(other, 1)])
    with pytest.raises(StateMismatchError, match="state row 3 is of another") as caught:
        PLAIN.check(rows)
    assert caught.value.expected == f"TEST {PLAIN.fingerprint_fields}"
    assert caught.value.got == f"TEST {other.fingerprint_fields}"
    assert str(caught.value).endswith("version is '0.9' in the row and '1.0' here")
    assert isinstance(caught.value, StateError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("state_format", FORMATS, ids=NAMES)
def test_a_flip_of_any_bit_of_the_header_is_noticed(state_format):
    rows = rows_of(state_format)
    for bit in range(8 * HEADER_NBYTES):
        damaged = rows.copy()
        damaged[3, bit // 8] ^= 1 << bit % 8
        with pytest.raises(StateError, match="row 3"):
            state_format.check(damaged)


@pytest.mark.parametrize("length", [65, 2**32, 2**63, 2**64 - 1])
def test_a_length_beyond_the_row_is_damage(length):
    rows = rows_of(VARIABLE)
    rows[2, 16:24].view(np.uint64)[0] = length
    VARIABLE.seal(rows)
    with pytest.raises(StateFormatError, match="state row 2 is damaged: its length"):
        VARIABLE.check(rows)


# Files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "states.pls"
    state_files.save(path, SUMMED, rows_of(SUMMED))
    return path


@pytest.mark.parametrize("state_format", FORMATS, ids=NAMES)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_files_give_back_what_was_saved(tmp_path, state_format, count):
    rows = rows_of(state_format, count)
    state_files.save(tmp_path / "f", state_format, rows)
    loaded = state_files.load(str(tmp_path / "f"), state_format)
    assert_same(loaded, rows)
    assert loaded.flags.writeable
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_is_replaced_keeps_its_permissions(file):
    file.chmod(0o600)
    with state_files.replacing(file) as unfinished:
        assert os.stat(unfinished.fileno()).st_mode & 0o777 == 0o600
        unfinished.write(b"new")
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_bytes() == b"new"


def test_a_failed_save_leaves_the_old_file_and_nothing_else(file):
    before = file.read_bytes()
    with pytest.raises(AttributeError):
        state_files.save(file, None, rows_of(SUMMED))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        state_files.save(file.parent / "no" / "such", SUMMED, rows_of(SUMMED))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_files_cut_short_anywhere_are_refused(file):
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(StateFormatError, match="states.pls"):
            state_files.load(file, SUMMED)


@settings(max_examples=50)
@given(st.data())
def test_files_with_a_flipped_bit_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "f"
    state_files.save(path, SUMMED, rows_of(SUMMED))
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(StateFormatError):
        state_files.load(path, SUMMED)


def test_damaged_rows_are_noticed_in_a_file_too(file):
    rows = rows_of(SUMMED)
    rows[3, 90] ^= 1
    state_files.save(file, SUMMED, rows)
    with pytest.raises(StateFormatError, match="row 3"):
        state_files.load(file, SUMMED)


def test_a_symbolic_link_stays_one(tmp_path):
    rows = rows_of(SUMMED)
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    for count in (5, 2):  # first to a file that is not there, then to one that is
        state_files.save(link, SUMMED, rows[:count])
        assert link.is_symlink() and not target.is_symlink()
        assert_same(state_files.load(target, SUMMED), rows[:count])
        assert_same(state_files.load(link, SUMMED), rows[:count])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_devices_are_written_to_and_stay(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        state_files.save(link, SUMMED, rows_of(SUMMED))
    assert Path("/dev/full").is_char_device()
    with pytest.raises(StateFormatError, match="not a file of state rows"):
        state_files.load("/dev/zero", SUMMED)


# Real environments


@pytest.mark.parametrize("name", first_of(["CartPole-v1", "ALE/Pong-v5", "FrozenLake-v1"], 2))
def test_named_fields_share_no_memory_with_the_rows(name):
    with plangym_like.make(name) as env:
        states = reached(env, 3)
        rows, before = states.copy(), env.get_state()
        for given in (rows, rows[1]):
            fields = env.view_state(given)
            kept = {key: np.array(value) for key, value in fields.items()}
            for value in fields.values():
                if isinstance(value, np.ndarray):
                    assert not np.shares_memory(value, rows) and not value.flags.writeable
                    value.flags.writeable = True
                    value[...] = 0
            assert_same(rows, states)
            for key, value in env.view_state(given).items():
                assert_same(np.array(value), kept[key])
        assert_same(env.get_state(), before)
