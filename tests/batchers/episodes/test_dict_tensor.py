"""`DictTensor`: a tensordict that reads its batch size off its tensors."""

import pickle

import pytest
import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes import DictTensor, masked_dicttensor, masked_tensor
from plangym_like.errors import InputError


def test_the_batch_size_is_read_off_the_tensors() -> None:
    given = DictTensor({"a": torch.zeros(5, 2), "b": torch.arange(5)})
    assert given.batch_size == torch.Size([5]) and given.n_elems() == 5
    assert isinstance(given, TensorDict)


def test_what_is_made_of_it_is_one_too() -> None:
    given = DictTensor({"a": torch.arange(6), "b": {"c": torch.arange(6)}})
    for made in (given[1:3], given[torch.tensor([0, 4])], torch.cat([given, given]), given.clone()):
        assert isinstance(made, DictTensor) and made.n_elems() == len(made["a"])
    assert pickle.loads(pickle.dumps(given))["b", "c"].tolist() == list(range(6))


def test_tensors_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InputError, match="different numbers of rows: {'a': 2, 'b': 3}"):
        DictTensor({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(InputError, match="numbers of rows: {'a': None}"):
        DictTensor({"a": torch.tensor(1.0)})


def test_rows_of_one_or_the_other() -> None:
    mask = torch.tensor([1, 0, 1])
    ones = DictTensor({"x": torch.ones(3, 2, dtype=torch.int64), "in": {"y": torch.ones(3)}})
    twos = DictTensor({"x": torch.full((3, 2), 2), "in": {"y": torch.full((3,), 2.0)}})
    found = masked_dicttensor(ones, twos, mask)
    assert found["x"].tolist() == [[2, 2], [1, 1], [2, 2]]
    assert found["in", "y"].tolist() == [2.0, 1.0, 2.0]
    assert ones["x"].tolist() == [[1, 1]] * 3
    with pytest.raises(InputError, match="the fields differ"):
        masked_dicttensor(ones, twos.select("x"), mask)
    with pytest.raises(InputError, match=r"a mask \[B\]"):
        masked_tensor(ones["x"], twos["x"], mask[:2])
