"""The model of a MuJoCo simulation: its digest, and whether something in it has changed.

State rows do not hold the model, except for the arrays that episodes or wrappers change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.mujoco.physics import address_of
from plangym_like.snapshots.base_settings import Settings
from plangym_like.snapshots.differences import difference

# The arrays of options that rows can hold.
_IN_OPTIONS = ("opt.gravity", "opt.magnetic", "opt.wind")
# MuJoCo aligns arrays to this many bytes.
_PADDING = 64


def model_arrays(model: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of `model`, except textures."""
    arrays = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {
        name: array
        for name, array in arrays.items()
        if isinstance(array, np.ndarray) and not name.startswith("tex_")
    }


def model_digest(model: Any, without: tuple[str, ...] = ()) -> str:
    """Return a digest of the options of `model`, and of its arrays except `without`."""
    digest = hashlib.blake2b(digest_size=8)
    for name, array in sorted(model_arrays(model).items()):
        if name not in without:
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    option = [name.removeprefix("opt.") for name in without if name.startswith("opt.")]
    digest.update((_shown_without(model.opt, option) if option else repr(model.opt)).encode())
    return digest.hexdigest()


def _shown_without(part: Any, names: list[str]) -> str:
    """Return the members of `part`, a structure of a model, except `names`, as text."""
    left = [name for name in dir(part) if name[0] != "_" and name not in names]
    return repr({name: getattr(part, name) for name in left})


class ModelSettings(Settings):
    """The arrays of a model, except textures, and its gravity and wind.

    Parameters
    ----------
    model : mujoco.MjModel
    without : collection of str
        The names of arrays that rows hold.
    """

    def __init__(self, model: Any, without: Collection[str] = ()) -> None:
        arrays = _changeable(model)
        self._arrays = {name: arrays[name] for name in arrays if name not in without}
        self._copies = {name: array.copy() for name, array in self._arrays.items()}
        self._spans = _spans(arrays, without)
        self._bytes = [span.tobytes() for span in self._spans]

    def change(self, *, thorough: bool = False) -> str:
        if [span.tobytes() for span in self._spans] == self._bytes:
            return ""
        return _change("model", self._copies, self._arrays)


class OptionSettings(Settings):
    """The members of ``opt`` or ``stat`` of a model that no row ever holds, such as the time step.

    Parameters
    ----------
    model : mujoco.MjModel
    group : {"opt", "stat"}
    """

    def __init__(self, model: Any, group: str) -> None:
        self._place, self._part = f"model.{group}", getattr(model, group)
        names = [name for name in dir(self._part) if f"{group}.{name}" not in _IN_OPTIONS]
        members = {name: getattr(self._part, name) for name in names if name[0] != "_"}
        self._arrays = {n: value for n, value in members.items() if isinstance(value, np.ndarray)}
        self._copies = {name: array.copy() for name, array in self._arrays.items()}
        self._names = [n for n, value in members.items() if isinstance(value, int | float)]
        self._get = attrgetter(*self._names)
        self._numbers = self._get(self._part)
        self._bytes = [array.tobytes() for array in self._arrays.values()]

    def change(self, *, thorough: bool = False) -> str:
        now = self._get(self._part)
        arrays = self._arrays.values()
        if now == self._numbers and [array.tobytes() for array in arrays] == self._bytes:
            return ""
        numbers = dict(zip(self._names, self._numbers, strict=True))
        changed = dict(zip(self._names, now, strict=True))
        return _change(self._place, {**self._copies, **numbers}, {**self._arrays, **changed})


class EditedArrays:
    """The arrays of a model, ``opt.gravity`` and the like, that episodes or wrappers change.

    Parameters
    ----------
    model : mujoco.MjModel
    moments : iterable
        Yields after each reset and step of some episodes.

    Attributes
    ----------
    arrays : dict of str to array
        The arrays that differed at one of these moments from what they were before.
    """

    def __init__(self, model: Any, moments: Iterable[Any]) -> None:
        every = _changeable(model)
        self._first = {name: array.copy() for name, array in every.items()}
        edited: set[str] = set()
        for _ in moments:
            edited |= {n for n in every if every[n].tobytes() != self._first[n].tobytes()}
        self.arrays = {name: every[name] for name in sorted(edited)}

    def restore(self) -> None:
        """Set the arrays to what they were before the first reset."""
        for name, array in self.arrays.items():
            array[...] = self._first[name]


def model_settings(model: Any, without: Collection[str] = ()) -> tuple[Settings, ...]:
    """Return all settings of `model`, except the arrays `without`."""
    return ModelSettings(model, without), *option_settings(model)


def option_settings(model: Any) -> tuple[Settings, ...]:
    """Return the settings in ``opt`` and ``stat`` of `model`."""
    return OptionSettings(model, "opt"), OptionSettings(model, "stat")


def _changeable(model: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of `model`, except textures, and the options that rows can hold."""
    return {**model_arrays(model), **{name: attrgetter(name)(model) for name in _IN_OPTIONS}}


def _change(place: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name in then:
        if found := difference(then[name], now[name], f"{place}.{name}"):
            return f"{found[0]} changed from {found[1].replace(' and ', ' to ', 1)}"
    return ""


def _spans(arrays: Mapping[str, NDArray[Any]], without: Collection[str]) -> list[NDArray[np.uint8]]:
    """Return few arrays over the memory of all `arrays` except `without`.

    A model has about 500 arrays in one block of memory, one after the other, with padding between
    them. Comparing the memory of neighbours together takes 3 us instead of 50.
    """
    spans: list[NDArray[np.uint8]] = []
    end, joins = 0, False
    for name, array in sorted(arrays.items(), key=lambda item: address_of(item[1])):
        if not array.size:
            continue
        begin, first = address_of(array), array.reshape(-1).view(np.uint8)
        if name in without:
            joins = False
            continue
        if joins and 0 <= begin - end < _PADDING:
            length = begin + array.nbytes - address_of(spans[-1])
            spans[-1] = np.lib.stride_tricks.as_strided(spans[-1], (length,), (1,))
        else:
            spans.append(first)
        end, joins = begin + array.nbytes, True
    return spans
