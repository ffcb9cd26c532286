"""The state of one MuJoCo simulation as plain bytes, and its model.

MuJoCo starts each step from its "integration state" (time, positions, velocities, activations, the
warm start of the solver, controls, applied forces, mocap poses, ...). All other arrays of
``MjData`` are derived from it, but not always from the latest state: after ``mj_step``, bodies have
the positions from before the last integration. So a derived array is saved too if it is read before
the next step computes it again.

State rows do not hold the model, except for the arrays that episodes or wrappers change.

See "The State" in the chapter "Computation" of MuJoCo's documentation.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from plangym_like.errors import InputError, SnapshotError
from plangym_like.states.rows import Row, padded

INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
# Parts of the integration state whose flag has another name than the array of MjData.
_NAMES = {"warmstart": "qacc_warmstart", "plugin": "plugin_state"}
# Parts with numbers of any size. MuJoCo resets a simulation with larger numbers than `mjMAXVAL`.
_ANY_SIZE = ("history", "plugin_state", "userdata")
# The number of episodes whose first steps show what changes.
_TRIALS = 3
# The ends of names of arrays on which constants depend that only MuJoCo 3.17 computes again.
_PLACES = ("_pos", "_ipos", "_quat", "_iquat", "_size")
# The arrays of options that rows can hold.
_IN_OPTIONS = ("opt.gravity", "opt.magnetic", "opt.wind")
# The parts of the integration state, by name: their flags in ascending order.
PARTS = {
    _NAMES.get(name, name): flag
    for flag, name in sorted(
        (int(flag), name.removeprefix("mjSTATE_").lower())
        for name, flag in mujoco.mjtState.__members__.items()
    )
    if flag & INTEGRATION and not flag & (flag - 1)
}
# The arrays that the scene is rendered from.
_DRAWN = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "subtree_com"),
    *("geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat"),
    *("light_xpos", "light_xdir", "actuator_length"),
    *("ten_length", "ten_wrapadr", "ten_wrapnum", "wrap_obj", "wrap_xpos"),
)


class PhysicsCodec:
    """Reads and writes the state of one simulation.

    Parameters
    ----------
    model, data : MjModel, MjData
    carried : mapping of str to array
        Contiguous arrays of the simulation that are saved with the integration state.
    versions : int
        If it is not 0, the carried number ``model`` is one of so many versions of the model, and
        `view` and `build_state` have it too.

    Attributes
    ----------
    state_nbytes : int
        Bytes of the integration state, which comes first.
    nbytes : int
        Bytes of the whole state.
    carried : tuple of str
        The names of the carried arrays.
    slices : list of (array, slice)
        Each carried array as bytes, and its position in a payload.
    places : dict of str to (slice, shape)
        For each array of numbers, its position in a payload, in units of 8 bytes, and its shape.

    Raises
    ------
    SnapshotError
        The model has flexible bodies, plugins, or bodies that may sleep.
    """

    def __init__(
        self, model: Any, data: Any, carried: Mapping[str, NDArray[Any]], versions: int = 0
    ) -> None:
        if found := _not_restored(model):
            raise SnapshotError(
                f"this model has {found}, of which MuJoCo does not restore everything; use "
                "snapshot='replay'"
            )
        self._model, self._data = model, data
        self._size = int(mujoco.mj_stateSize(model, INTEGRATION))
        self.state_nbytes = 8 * self._size
        self.places = _parts(model, data)
        self._versions = versions
        self._names = (*self.places, *(("model",) if versions else ()))
        self.carried = tuple(carried)
        self.slices, self.nbytes = lay_out(carried, self.state_nbytes, self.places)
        # The padding after arrays whose size is not a multiple of 8 bytes.
        ends = (place.stop for _, place in self.slices)
        self._gaps = [slice(end, padded(end)) for end in ends if end % 8]

    def read(self, payload: Row) -> None:
        """Copy the simulation's state into `payload`, ``(nbytes,)`` or longer."""
        state = np.frombuffer(payload, np.float64, self._size)
        mujoco.mj_getState(self._model, self._data, state, INTEGRATION)
        for view, place in self.slices:
            payload[place] = view
        # Padding is zeroed, so that rows of equal states are equal.
        for gap in self._gaps:
            payload[gap] = 0

    def write(self, payload: Row) -> None:
        """Restore the state in `payload`; derived arrays that it does not hold stay unchanged."""
        state = np.frombuffer(payload, np.float64, self._size)
        if not state.flags.writeable:  # older versions of MuJoCo refuse such an array
            state = state.copy()
        mujoco.mj_setState(self._model, self._data, state, INTEGRATION)
        for view, place in self.slices:
            view[:] = payload[place]

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the non-empty parts of the integration state by name, each ``(N, ...)``."""
        numbers = payloads[:, : self.nbytes].view(np.float64)
        found = {}
        for name in self._names:
            place, shape = self.places[name]
            if place.stop > place.start:
                found[name] = numbers[:, place].reshape(len(payloads), *shape)
        return found

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write `physics`, the parts of a state that `view` names, into `payload`.

        If a value changes, the derived arrays in `payload` are computed again. The state of the
        simulation itself does not change.

        Raises
        ------
        InputError
            A name is unknown, or a value has the wrong shape or is too large for MuJoCo.
        """
        known = self.view(payload[None])
        unknown = sorted(physics.keys() - known.keys())
        if unknown:
            raise InputError(
                f"make_state takes {', '.join(sorted(known))} here, not {', '.join(unknown)}"
            )
        values = {
            name: self._checked(name, given, known[name].shape[1:])
            for name, given in physics.items()
        }
        if all((value == known[name][0]).all() for name, value in values.items()):
            return
        for name, value in values.items():
            payload[: self.nbytes].view(np.float64)[self.places[name][0]] = value.ravel()
        numbers = payload[: self.state_nbytes].view(np.float64)
        kept = numbers.copy()
        current = np.empty(self.nbytes, np.uint8)
        self.read(current)
        try:
            self.write(payload)
            mujoco.mj_forward(self._model, self._data)
            self.read(payload)
        finally:
            self.write(current)
        # Some versions of MuJoCo change the warm start when they derive arrays.
        numbers[:] = kept

    def _checked(self, name: str, given: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the value `given` for the field `name` as an array of `shape`."""
        try:
            value = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must have the shape {shape}, got {given!r}") from error
        if name in _ANY_SIZE and value.shape == shape:
            return value
        if name == "eq_active" and not np.isin(value, (0, 1)).all():
            raise InputError(f"eq_active must be numbers 0 or 1, got {given!r}")
        if name == "model" and (value.shape != shape or value not in range(self._versions)):
            raise InputError(f"model must be a number below {self._versions}, got {given!r}")
        # If a state has larger numbers, MuJoCo's next step resets the simulation.
        if value.shape != shape or not (np.abs(value) <= mujoco.mjMAXVAL).all():
            raise InputError(
                f"{name} must be numbers of shape {shape} between -{mujoco.mjMAXVAL:g} and "
                f"{mujoco.mjMAXVAL:g}, MuJoCo's largest number, got {given!r}"
            )
        return value


def _not_restored(model: Any) -> str:
    """Return what of `model` has a state that MuJoCo does not restore; empty if nothing has."""
    sleep = getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", 0)
    if model.opt.enableflags & int(sleep):
        return 'bodies that may fall asleep (<flag sleep="enable"/>)'
    return "flexible bodies" if model.nflex else "plugins" if model.nplugin else ""


def lay_out(
    arrays: Mapping[str, NDArray[Any]],
    begin: int,
    places: dict[str, tuple[slice, tuple[int, ...]]],
) -> tuple[list[tuple[NDArray[np.uint8], slice]], int]:
    """Assign consecutive positions in a payload to `arrays`, from byte `begin` on.

    Return a list of pairs (array viewed as bytes, its slice of the payload), and the byte at which
    one more array would begin. Each array's position, in units of 8 bytes, and its shape are added
    to `places`.
    """
    slices, end = [], begin
    for name, array in arrays.items():
        view = array.reshape(-1).view(np.uint8)
        assert np.shares_memory(view, array)
        slices.append((view, slice(end, end + view.size)))
        places[name] = (slice(end // 8, (end + view.size) // 8), array.shape)
        end += padded(view.size)
    return slices, end


def drawn(data: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays that images of `data` are rendered from."""
    arrays = {name: getattr(data, name, None) for name in _DRAWN}
    return {name: array for name, array in arrays.items() if array is not None and array.size}


def _parts(model: Any, data: Any) -> dict[str, tuple[slice, tuple[int, ...]]]:
    """Return the place and the shape of each part of the integration state, in units of 8 bytes.

    The parts are in the order of their flags.
    """
    places, end = {}, 0
    for name, flag in PARTS.items():
        begin, end = end, end + int(mujoco.mj_stateSize(model, flag))
        shape = np.shape(getattr(data, name, np.empty(end - begin)))
        places[name] = slice(begin, end), shape
    return places


# The model


def _model_arrays(model: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of `model`, except textures."""
    arrays = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {
        name: array
        for name, array in arrays.items()
        if isinstance(array, np.ndarray) and not name.startswith("tex_")
    }


def model_digest(model: Any, without: Collection[str] = ()) -> str:
    """Return a digest of the options of `model`, and of its arrays except `without`."""
    digest = hashlib.blake2b(digest_size=8)
    for name, array in sorted(_model_arrays(model).items()):
        if name not in without:
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr(_options(model, without)).encode())
    return digest.hexdigest()


def _options(model: Any, without: Collection[str]) -> dict[str, Any]:
    """Return copies of the options and statistics of `model`, except those named in `without`."""
    found = {}
    for group in ("opt", "stat"):
        part = getattr(model, group)
        names = [f"{group}.{name}" for name in dir(part) if name[0] != "_"]
        found.update({name: attrgetter(name)(model) for name in names if name not in without})
    return copy.deepcopy(found)


def begun_episodes(env: Any) -> Iterator[None]:
    """Play the first two steps of some episodes of `env`; yield after each reset and step."""
    # Sampling from the environment's own space would change its random sequence.
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    for seed in range(_TRIALS):
        env.reset(seed=seed)
        yield
        with contextlib.suppress(Exception):
            for _ in range(2):
                env.step(actions.sample())
                yield


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


def _changeable(model: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of `model`, except textures, and the options that rows can hold."""
    return {**_model_arrays(model), **{name: attrgetter(name)(model) for name in _IN_OPTIONS}}


def with_fields(model: Any, fields: Mapping[str, ArrayLike]) -> list[Any]:
    """Return K copies of `model`, each with other values of some of its arrays.

    MuJoCo computes the constants that depend on them, such as the mass of subtrees, again. For
    places and sizes of bodies, geoms and so on, this needs MuJoCo 3.17.

    Parameters
    ----------
    model : mujoco.MjModel
    fields : mapping of str to array ``(K, *shape)``
        The values in each copy, by the names of arrays of floats in ``MjModel``, such as
        ``body_mass`` or ``opt.gravity``.

    Raises
    ------
    InputError
        The model has no such array; the values have another shape, or are not finite; or MuJoCo
        cannot compute the constants.
    """
    every = _changeable(model)
    given = {name: _values_of(name, values, every.get(name)) for name, values in fields.items()}
    if len(counts := {len(values) for values in given.values()}) > 1:
        raise InputError(f"arrays of models must have the same length, got {sorted(counts)}")
    stale = [name for name in given if name.endswith(_PLACES)]
    if stale and tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 17):
        raise InputError(
            f"models has {stale[0]!r}, but MuJoCo {mujoco.__version__} does not compute the "
            "constants that depend on places and sizes: give a sequence of models, or use 3.17"
        )
    copies = [copy.copy(model) for _ in range(max(counts, default=0))]
    for number, version in enumerate(copies):
        _set_arrays(version, given, number)
        try:
            mujoco.mj_setConst(version, mujoco.MjData(version))
        except mujoco.FatalError as error:
            raise InputError(f"models: {', '.join(given)} cannot be changed: {error}") from error
        _set_arrays(version, given, number)  # MuJoCo may have computed some of them
    return copies


def _set_arrays(model: Any, given: Mapping[str, NDArray[Any]], number: int) -> None:
    """Set arrays of `model` to the values at `number`."""
    for name, values in given.items():
        attrgetter(name)(model)[...] = values[number]


def _values_of(name: str, given: ArrayLike, now: NDArray[Any] | None) -> NDArray[np.float64]:
    """Return the values of the array `name` in each copy of a model, where it is `now`."""
    if now is None or now.dtype.kind != "f":
        raise InputError(f"models has {name!r}, which is not an array of floats in MjModel")
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"models[{name!r}] must be numbers: {error}") from error
    if values.shape[1:] != now.shape or not values.ndim or not np.isfinite(values).all():
        shape = ", ".join(map(str, ("K", *now.shape)))
        raise InputError(
            f"models[{name!r}] must be finite numbers of shape ({shape}), one array for each "
            f"version of the model; got the shape {values.shape}"
        )
    return values
