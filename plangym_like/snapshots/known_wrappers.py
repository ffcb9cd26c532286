"""The wrappers around an environment, and the attributes that are the state of an object."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chains import CONSTANT, chain, reachable
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    NO_HANDLES,
    describe,
    is_configuration,
    is_handle,
    qualified_name,
)
from plangym_like.states.random_state import restart


class Forwarding(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The base class of wrappers of this package that forward calls to a copy of the chain."""


# Wrappers that only check how an environment is called.
_CHECKING = (OrderEnforcing, PassiveEnvChecker)
_OWN = "gymnasium.wrappers."
# The attributes of Gymnasium's wrappers (versions 1.1 to 1.4) that their steps only read. All
# others, also those of later versions, are state.
_SETTINGS: dict[str, str] = {
    "atari_preprocessing.AtariPreprocessing": (
        "noop_max frame_skip screen_size terminal_on_life_loss scale_obs grayscale_obs "
        "grayscale_newaxis"
    ),
    "common.Autoreset": "",
    "common.RecordEpisodeStatistics": "_stats_key",
    "common.TimeLimit": "_max_episode_steps",
    "rendering.AddWhiteNoise": "probability_of_noise_per_pixel is_noise_grayscale",
    "rendering.ObstructView": "obstruction_centers_ratio obstruction_width is_noise_grayscale",
    "stateful_action.RepeatAction": "num_repeats",
    "stateful_action.StickyAction": "repeat_action_probability repeat_action_duration_range",
    "stateful_observation.DelayObservation": "delay",
    "stateful_observation.FrameStackObservation": "padding_type padding_value stack_size",
    "stateful_observation.MaxAndSkipObservation": "_skip",
    "stateful_observation.NormalizeObservation": "epsilon",
    "stateful_observation.TimeAwareObservation": "flatten normalize_time max_timesteps",
    "stateful_reward.NormalizeReward": "gamma epsilon",
}
# Times of this process, and memory that each step fills anew: they are never state.
_PASSING = frozenset(["episode_start_time", "time_queue", "stacked_obs"])
_UNCHANGING: tuple[str, ...] = ("transform_action.", "transform_observation.", "transform_reward.")
_UNCHANGING += ("jax_to_numpy.",)
_FOREIGN = (
    "it converts arrays to arrays of another library, but batches here are NumPy arrays; leave it "
    "out and convert whole batches, as plangym_like.batchers does"
)
_IMPOSSIBLE = {
    f"{_OWN}rendering.RecordVideo": "it writes files; make a video of get_image() instead",
    f"{_OWN}rendering.HumanRendering": "it owns a window; show get_image() instead",
    f"{_OWN}rendering.RenderCollection": "its list of images has no limit; use get_image() instead",
    f"{_OWN}array_conversion.ArrayConversion": _FOREIGN,
    f"{_OWN}jax_to_torch.JaxToTorch": _FOREIGN,
    f"{_OWN}numpy_to_torch.NumpyToTorch": _FOREIGN,
}


def visible(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers around `env`, outermost first; leave out those without any effect."""
    return [wrapper for wrapper in chain(env) if not is_transparent(wrapper)]


def is_transparent(link: Any) -> bool:
    """Return whether `link` is a wrapper that changes nothing."""
    return type(link) in _CHECKING or isinstance(link, Forwarding)


def describe_wrappers(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the classes and arguments of the `visible` wrappers, outermost first."""
    return [[qualified_name(type(wrapper)), _arguments(wrapper)] for wrapper in visible(env)]


def state_names(wrapper: Any, *, within_others: bool = False) -> tuple[str, ...] | None:
    """Return the names of the attributes that are the state of `wrapper`; ``None`` means all.

    The class of a wrapper or an environment may list them: ``state_attributes = ("name", ...)``. A
    wrapper from outside Gymnasium may change any attribute of the wrappers inside it, such as the
    length of a time limit. With ``within_others=True``, all attributes are therefore state.
    """
    declared = getattr(type(wrapper), "state_attributes", None)
    if declared is not None:
        # The class of an environment may list tuples of a name, a dtype and a shape; its generator
        # is state anyway.
        listed = [item if isinstance(item, str) else item[0] for item in declared]
        is_listed = isinstance(wrapper, gymnasium.Wrapper) or "_np_random" in listed
        return (*listed,) if is_listed else (*listed, "_np_random")
    if within_others or not is_known(wrapper):
        return None
    kind = qualified_name(type(wrapper)).removeprefix(_OWN)
    if kind not in _SETTINGS:  # it only applies a function
        return ()
    idle = {*CONSTANT, *_PASSING, *_SETTINGS[kind].split()}
    names: list[str] = []
    for name, value in vars(wrapper).items():
        if name in idle or callable(value):
            continue
        if isinstance(value, RunningMeanStd):
            names += [f"{name}.{part}" for part in vars(value)]
        else:
            names.append(name)
    return (*names,)


def is_known(wrapper: Any) -> bool:
    """Return whether `wrapper` is one of Gymnasium's own wrappers whose state is known."""
    if is_transparent(wrapper):
        return True
    name = qualified_name(type(wrapper))
    kind = name.removeprefix(_OWN)
    return kind != name and (kind in _SETTINGS or kind.startswith(_UNCHANGING))


def is_foreign_env(base: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `base`, without wrappers, is from outside Gymnasium and this package."""
    return _package_of(type(base)) not in ("gymnasium", _package_of(chain))


def foreign_wrappers(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the names of wrappers with code from outside Gymnasium and NumPy, outermost first."""
    return [type(wrapper).__name__ for wrapper in visible(env) if _is_foreign(wrapper)]


def _is_foreign(wrapper: Any) -> bool:
    functions = (value for name, value in vars(wrapper).items() if name not in CONSTANT)
    return not is_known(wrapper) or any(
        callable(value) and not _is_trusted(value) for value in functions
    )


def _is_trusted(value: Any) -> bool:
    return isinstance(value, type) or _package_of(value) in ("gymnasium", "numpy")


def _package_of(thing: Any) -> str:
    """Return the name of the package in which `thing`, or else its class, is defined."""
    return str(getattr(thing, "__module__", None) or type(thing).__module__).partition(".")[0]


def impossible(wrapper: Any) -> str | None:
    """Return why wrappers of the same class as `wrapper` cannot be saved; ``None`` if they can."""
    kinds = (qualified_name(kind) for kind in type(wrapper).__mro__)
    return next((_IMPOSSIBLE[kind] for kind in kinds if kind in _IMPOSSIBLE), None)


def _arguments(wrapper: Any) -> Any:
    """Return a wrapper's constructor arguments, from Gymnasium's record or from its attributes."""
    recorded = getattr(wrapper, "_saved_kwargs", None)
    if recorded is not None:
        return describe(recorded)
    attributes = vars(wrapper)
    found = {}
    for name in inspect.signature(type(wrapper).__init__).parameters:
        for key in (name, f"_{name}"):
            if key in attributes and key not in CONSTANT:
                found[name] = describe(attributes[key])
    return found


# Objects and their state


class StateOwner:
    """An object, and the names of the attributes that are its state.

    Parameters
    ----------
    place : str
        The name of the object in error messages.
    thing : object
        The object.
    names : tuple of str or None
        The attributes that are the object's state; a dotted name is an attribute of an attribute.
        ``None`` means all attributes except handles (see `is_handle`), those in `constant`, and
        those that are still what they were at first, as in `fixed`.
    fixed : dict, optional
        The values of attributes that are configuration. Such an attribute is state only if it is
        another object now.

    Attributes
    ----------
    constant : set of str
        Attributes that are never state of this object.
    """

    __slots__ = ("_get", "constant", "fixed", "names", "place", "thing")

    def __init__(
        self,
        place: str,
        thing: Any,
        names: tuple[str, ...] | None,
        fixed: dict[str, Any] | None = None,
    ) -> None:
        self.place, self.thing = place, thing
        self.constant = _PASSING | {"_cached_spec"} if is_known(thing) else {"_cached_spec"}
        self.fixed: dict[str, Any] = {} if fixed is None else fixed
        self._set_names(names)

    def leave_out(self, name: str) -> None:
        """Leave the attribute `name` out of the state."""
        if self.names is None:
            self.constant |= {name}
        else:
            self._set_names(tuple(each for each in self.names if each != name))

    def _set_names(self, names: tuple[str, ...] | None) -> None:
        self.names = names
        one = attrgetter(*names) if names else lambda thing: ()
        self._get: Callable[[Any], Any] = (
            (lambda thing: (one(thing),)) if names and len(names) == 1 else one
        )

    def read(self) -> Any:
        """Return the state: a tuple in the order of `names`, or a dict if `names` is ``None``.

        The keys of the dict are sorted.
        """
        if self.names is not None:
            try:
                return self._get(self.thing)
            except AttributeError as error:
                raise SnapshotError(f"{self.place} cannot be saved: {error}") from error
        attributes, fixed, constant = self.thing.__dict__, self.fixed, self.constant
        state = {}
        for name in sorted(attributes):
            value = attributes[name]
            if name in constant or (name in fixed and fixed[name] is value):
                continue
            if type(value) in NO_HANDLES or not is_handle(value):
                state[name] = value
        return state

    def write(self, state: Any) -> None:
        """Set the state of the object to `state`; ``fits(state)`` must be true."""
        if self.names is not None:
            set_attributes(self.thing, zip(self.names, state, strict=True))
            return
        attributes = self.thing.__dict__
        handles = handles_in(attributes)
        attributes.update(self.fixed)
        attributes.update(state)
        if handles:
            attributes.update(handles)
        for name in attributes.keys() - state.keys():
            if not (name in self.fixed or name in handles or name in self.constant):
                del attributes[name]

    def fits(self, state: Any) -> bool:
        """Return whether `state` has the form of this object's state."""
        if self.names is not None:
            return type(state) is tuple and len(state) == len(self.names)
        return type(state) is dict and self.constant.isdisjoint(state)

    def items(self, state: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each attribute in `state`."""
        yield from state.items() if self.names is None else zip(self.names, state, strict=True)


def set_attributes(thing: Any, values: Iterable[tuple[str, Any]]) -> None:
    """Set attributes of `thing`; a dotted name is an attribute of an attribute."""
    for name, value in values:
        path, _, last = name.rpartition(".")
        setattr(attrgetter(path)(thing) if path else thing, last, value)


def handles_in(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return those of `attributes` that are windows, images, clocks or locks."""
    return {
        name: value
        for name, value in attributes.items()
        if type(value) not in NO_HANDLES and is_handle(value)
    }


def restorer_of(things: Sequence[Any], shared: Iterable[Any] = ()) -> Callable[[], None]:
    """Return a function that gives all `things` the attributes back that they have now.

    It may be called several times. Attributes are copied, with all that they hold. Not copied are
    configuration, handles (such as windows), what cannot be copied, and `things` and `shared`.
    """
    kept_as_is = {id(thing): thing for thing in (*things, *shared)}
    seen = {*kept_as_is}
    for thing in things:
        for name, value in vars(thing).items():
            for _, inner in reachable(value, name, seen):
                if is_handle(inner) or (
                    is_configuration(inner) and not isinstance(inner, FUNCTIONS)
                ):
                    kept_as_is[id(inner)] = inner

    def copied(all_attributes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        memo, found = dict(kept_as_is), []  # what several hold stays one object
        for attributes in all_attributes:
            copies = dict(attributes)
            for name in attributes.keys() - CONSTANT:
                with contextlib.suppress(Exception):
                    copies[name] = copy.deepcopy(attributes[name], memo)
            found.append(copies)
        return found

    kept = copied(map(vars, things))

    def restore() -> None:
        for thing, attributes in zip(things, copied(kept), strict=True):
            now = vars(thing)
            handles = handles_in(now)
            now.clear()
            now.update(attributes | handles)

    return restore


def restart_generators(values: Iterable[Any], but: Iterable[Any], seed: int) -> None:
    """Restart the random generators in `values` from `seed`; leave out the objects in `but`."""
    seen, number = {id(thing) for thing in but}, 0
    for value in values:
        for _, thing in reachable(value, "", seen):
            if isinstance(thing, np.random.Generator):
                bits: Any = thing.bit_generator
                start = np.random.SeedSequence(int(seed), spawn_key=(number,))
                restart(bits, type(bits)(start))
                number += 1


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
