"""`ChainState`: finds the objects in a wrapper chain that own state, and encodes their values.

It walks through the attributes of each wrapper and, if `base` is true, of the environment inside
them. Spaces, functions, classes and similar objects are configuration, and are encoded as
references. Subclasses define how all other objects are encoded.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import is_handle, qualified_name
from plangym_like.snapshots.known_wrappers import (
    describe_wrappers,
    impossible,
    is_known,
    state_names,
    visible,
)
from plangym_like.snapshots.state_owner import CONSTANT, StateOwner, always, restart_generators
from plangym_like.states.random_state import make_generator


class ChainState(abc.ABC):
    """The state of a chain of wrappers, and of the environment inside them if `base` is true.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers. It must have been reset, so that wrappers have the
        attributes that ``reset`` adds.
    base : bool
        Whether to walk through the attributes of the environment inside the wrappers, too.

    Attributes
    ----------
    owners : list of StateOwner
        The objects that own state, outermost wrapper first.

    Raises
    ------
    SnapshotError
        A wrapper cannot be saved; the message names it and the attribute, and says what to do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, base: bool) -> None:
        self._env = env
        chain = links(env)
        self._links = {id(link) for link in chain}
        self._fingerprint_fields = describe_wrappers(env)
        self.owners: list[StateOwner] = []
        # Objects that are encoded as references, by the place where they were found.
        self._references: dict[str, Any] = {}
        self._seen: set[int] = set()
        foreign = False
        for link in [*visible(env), *chain[-1:]] if base else visible(env):
            reason = impossible(link)
            if reason is not None:
                name = qualified_name(type(link))
                raise SnapshotError(f"wrapper {name} cannot be saved: {reason}")
            # An environment may keep the game itself in an attribute called env.
            constant = CONSTANT - {"env"} if link is chain[-1] else CONSTANT
            name, names = type(link).__name__, state_names(link, within_others=foreign)
            foreign = foreign or not is_known(link)
            owner = StateOwner(name, type(link), always(link), names, constant=constant)
            if names != ():
                self.owners.append(owner)
            self._walk_link(owner, link)

    def restorer(self) -> Callable[[], None]:
        """Return a function that restores the present state of the chain, before its first reset.

        The function may be called several times. It removes attributes that the first reset
        creates, except handles, such as windows.

        Raises
        ------
        SnapshotError
            An attribute holds something that cannot be saved.
        """
        for owner in self.owners:
            owner.leave_out_missing()
        found = [vars(owner.locate()) for owner in self.owners]
        kept = [dict(attributes) for attributes in found]
        data = self.encoded()

        def restore() -> None:
            for attributes, before in zip(found, kept, strict=True):
                handles = {name: value for name, value in attributes.items() if is_handle(value)}
                attributes.clear()
                attributes.update(before | handles)
            # The data may refer to the generator of the environment, which may be missing now.
            make_generator(links(self._env)[-1])
            self.restore(self.decoded(data))

        return restore

    def fingerprint_fields(self) -> list[Any]:
        """Return the classes and arguments of the wrappers, outermost first, as JSON data."""
        return self._fingerprint_fields

    def reseed(self, seed: int) -> None:
        """Restart the owners' random generators from `seed`, except the base's ``np_random``."""
        if not self.owners:
            return
        own = vars(links(self._env)[-1]).get("_np_random")
        restart_generators(self.owners, own, seed)

    def encoded(self) -> bytes:
        """Return the values of all owners as bytes.

        Raises
        ------
        SnapshotError
            An attribute holds something that cannot be saved.
        """
        values = [owner.read() for owner in self.owners]
        try:
            return self._encode(values)
        except Exception as error:
            raise self._refused(values, error) from error

    def decoded(self, data: bytes) -> list[Any]:
        """Decode the values of all owners from `data`, which `encoded` returned.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """
        values: list[Any] = self._decode(data)
        if not (
            type(values) in (list, tuple)
            and len(values) == len(self.owners)
            and all(map(StateOwner.fits, self.owners, values))
        ):
            raise StateFormatError("a state row does not belong to this chain of wrappers")
        return values

    def restore(self, values: list[Any]) -> None:
        """Set the state of the owners to `values`, which `decoded` returned."""
        for owner, value in zip(self.owners, values, strict=True):
            owner.write(value)

    @abc.abstractmethod
    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        """Walk through the attributes of `link`; `owner` reads and writes their values."""

    @abc.abstractmethod
    def _encode(self, values: list[Any]) -> bytes:
        """Return `values` as bytes."""

    @abc.abstractmethod
    def _decode(self, data: bytes) -> Any:
        """Return the values that `data` encodes."""

    @abc.abstractmethod
    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        """Return the error for the attribute `place`, whose `value` cannot be saved."""

    def _refer(self, place: str, value: Any) -> str:
        """From now on, encode `value` as a reference; return a unique name of its place."""
        while place in self._references:
            place += "'"
        self._references[place] = value
        return place

    def _refused(self, values: list[Any], error: Exception) -> SnapshotError:
        """Find the attribute in `values` that cannot be saved, and return an error for it."""
        for owner, value in zip(self.owners, values, strict=True):
            for name, part in owner.items(value):
                try:
                    self._encode([part])
                except Exception as reason:
                    return self._unsaveable(f"{owner.place}.{name}", part, reason)
        return SnapshotError(f"the environment cannot be saved: {error}")


def columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Stack the values of all `rows` by key.

    A key is left out unless its values are numbers or arrays, all with the same shape and dtype.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, value in rows[0].items() if rows else ():
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            parts = [np.asarray(row.get(name)) for row in rows]
            if len({(part.shape, part.dtype) for part in parts}) == 1 and parts[0].dtype != object:
                found[name] = np.stack(parts)
    return found
