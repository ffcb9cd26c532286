"""The codecs of environments that define their state themselves.

`OwnCodec` saves the attributes in ``state_attributes`` of their class, and `SaveLoadCodec` what
their method ``save_state`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.codec import Attribute, AttributeCodec
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.states.random_state import make_generator

# Rows hold this generator anyway.
_GENERATOR = ("np_random", "_np_random", "_np_random_seed")


class _NoSeeds:
    """Takes the place of a generator, or of what it spawns from, that does not exist."""

    n_children_spawned = 0


class OwnCodec(AttributeCodec):
    """Saves the attributes that the environment's class lists in ``state_attributes``.

    Parameters
    ----------
    base : gymnasium.Env
        The environment, reset at least once.
    name : str or callable
        The id or callable that the environment was made from.
    capacity : int, optional
        Bytes for data of no fixed size.
    attributes : sequence of Attribute, optional
        By default, those that the class lists.
    """

    is_strict = True
    # The last generator, which is not the present one at first, and what it spawns from.
    _known: Any = _NoSeeds
    _seeds: Any = _NoSeeds

    def __init__(
        self,
        base: Any,
        name: Any,
        capacity: int | None,
        attributes: Sequence[Attribute] | None = None,
    ) -> None:
        self._name = name
        found = declared_attributes(base) if attributes is None else attributes
        super().__init__(base, found or (), capacity)

    @property
    def example(self) -> NDArray[Any] | None:
        """An array with the dtype and shape of states, if a state is one array."""
        if len(self.attributes) != 1 or self.attributes[0].shape is None:
            return None
        return np.empty(self.attributes[0].shape, self.attributes[0].dtype)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        return {
            "class": qualified_name(type(self._base)),
            "callable": None if isinstance(self._name, str) else describe(self._name),
            **super().fingerprint_fields(),
            "generator": "behind the state",
        }

    def values(self) -> Sequence[Any]:
        self._refuse_spawned()
        found: Sequence[Any] = self._owner.read()
        return found

    def known(self, sized: Sequence[Any], *, for_decoding: bool = False) -> Sequence[Any]:
        """Return the environment's generator, and the arrays with a dtype."""
        own = self._base._np_random
        if own is None and for_decoding:  # the data may refer to it
            make_generator(self._base)
            own = self._base._np_random
        known: list[Any] = [_NoSeeds if own is None else own]
        for index in self._arrays:  # a comprehension takes longer
            known.append(sized[index])
        return known

    def reseed(self, seed: int) -> None:
        """Restart the random generators that are attributes."""
        self._known = _NoSeeds
        super().reseed(seed)

    def _refuse_spawned(self) -> None:
        """Raise `SnapshotError` if the generator has spawned others, which rows do not count."""
        own = self._base._np_random
        if own is not self._known:
            seeds = _NoSeeds if own is None else own.bit_generator.seed_seq
            counts = hasattr(seeds, "n_children_spawned")
            self._known, self._seeds = own, seeds if counts else _NoSeeds
        if self._seeds.n_children_spawned:
            vars(self)["put"] = self._put_anew
            raise SnapshotError(
                f"{type(self._base).__name__}.np_random has spawned generators, and rows do not "
                "hold how many: draw seeds for new generators from it, or make the environment "
                "with snapshot='replay'"
            )

    def _put_anew(self, values: Sequence[Any]) -> None:
        """Restore a state after the generator has spawned others, which no row holds."""
        del vars(self)["put"]
        seeds: Any = self._seeds
        kind: Any = type(seeds)
        if kind is np.random.SeedSequence:
            fresh = kind(seeds.entropy, spawn_key=seeds.spawn_key, pool_size=seeds.pool_size)
            # In place, because other objects may refer to it.
            seeds.__setstate__(fresh.__reduce__()[2])
        self.put(values)


class SaveLoadCodec(OwnCodec):
    """Saves and restores states with the environment's ``save_state`` and ``load_state``.

    The parameters are those of `OwnCodec`. A state is one value called ``state``: an array with
    axes that is C-contiguous and always has the dtype and shape that it has at first, or else plain
    data.
    """

    other_form = "always return such an array"
    without_dtype = "always return it in a list: then any plain data are saved as they are"

    def __init__(self, base: Any, name: Any, capacity: int | None) -> None:
        self._base = base
        try:
            (saved,) = self.values()
        except Exception as error:
            raise refusal(base, "save_state", error) from error
        form = (saved.dtype, saved.shape) if _is_plain_array(saved) else ()
        super().__init__(base, name, capacity, [Attribute("state", *form)])

    def values(self) -> Sequence[Any]:
        self._refuse_spawned()
        return (self._base.save_state(),)

    def put(self, values: Sequence[Any]) -> None:
        (saved,) = values
        self._base.load_state(saved)

    def place(self, name: str) -> str:
        return f"the state that {type(self._base).__name__}.save_state() returned"

    def reseed(self, seed: int) -> None:
        """Leave generators alone: those in the state belong to the environment."""


def declared_attributes(base: Any) -> list[Attribute] | None:
    """Return the attributes in ``state_attributes`` of the class of `base`; ``None`` without it.

    The generator ``np_random`` is left out, because every row holds it.

    Raises
    ------
    SnapshotError
        An entry is neither a name nor a tuple of name, dtype and shape, or a name occurs twice.
    """
    declared = getattr(type(base), "state_attributes", None)
    if declared is None:
        return None
    found = []
    for item in (declared,) if isinstance(declared, str) else declared:
        try:
            name, dtype, shape = Attribute(item) if isinstance(item, str) else Attribute(*item)
            shape = None if shape is None else tuple(shape)
            np.dtype((dtype, shape or ()))
            found.append(Attribute(name, dtype, shape))
        except (TypeError, ValueError) as error:
            raise SnapshotError(
                f"{type(base).__name__}.state_attributes must list names, or tuples of a name, a "
                f"dtype and, for an array, its shape, not {item!r}"
            ) from error
    names = [each.name for each in found]
    if len(names) > len({*names}):
        raise SnapshotError(f"{type(base).__name__}.state_attributes has a name twice: {names}")
    return [each for each in found if each.name not in _GENERATOR]


def _is_plain_array(saved: Any) -> bool:
    """Return whether `saved` is an array with axes whose bytes are its whole content.

    This is false for masked arrays, which also have a mask, and for arrays of objects or of
    variable-length strings, which hold addresses.
    """
    return type(saved) is np.ndarray and saved.ndim > 0 and not saved.dtype.hasobject


def refusal(base: Any, method: str, error: Exception) -> SnapshotError:
    """Return the error for `error`, which the method `method` of `base` raised."""
    return SnapshotError(
        f"{type(base).__name__}.{method} raised {type(error).__name__}: {error}; save_state() must "
        "return the state, and load_state(state) must restore it"
    )
