"""The state of one MuJoCo simulation as plain bytes.

MuJoCo starts each step from its "integration state" (time, positions, velocities, activations, the
warm start of the solver, controls, applied forces, mocap poses). All other arrays of ``MjData`` are
derived from it, but not always from the latest state: after ``mj_step``, bodies have the positions
from before the last integration. So a derived array is saved too if it is read before the next step
computes it again.

See "The State" in the chapter "Computation" of MuJoCo's documentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.states import Row, padded

INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
# The arrays of MjData in the integration state: name -> bit.
_PARTS = {
    name: getattr(mujoco.mjtState, f"mjSTATE_{bit}")
    for bit, name in {
        "QPOS": "qpos",
        "QVEL": "qvel",
        "ACT": "act",
        "WARMSTART": "qacc_warmstart",
        "CTRL": "ctrl",
        "QFRC_APPLIED": "qfrc_applied",
        "XFRC_APPLIED": "xfrc_applied",
        "MOCAP_POS": "mocap_pos",
        "MOCAP_QUAT": "mocap_quat",
        "USERDATA": "userdata",
    }.items()
}
# The arrays that the scene is rendered from.
_DRAWN = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "subtree_com"),
    *("geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat"),
    *("light_xpos", "light_xdir", "flexvert_xpos", "flexedge_length", "actuator_length"),
    *("ten_length", "ten_wrapadr", "ten_wrapnum", "wrap_obj", "wrap_xpos"),
)


class PhysicsMemory:
    """Reads and writes the state of one simulation.

    Parameters
    ----------
    model, data : MjModel, MjData
    carried : mapping of str to array
        Contiguous arrays of the simulation that are saved with the integration state.

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
    """

    def __init__(self, model: Any, data: Any, carried: Mapping[str, NDArray[Any]]) -> None:
        self._model, self._data = model, data
        self._size = int(mujoco.mj_stateSize(model, INTEGRATION))
        self.state_nbytes = 8 * self._size
        self.places: dict[str, tuple[slice, tuple[int, ...]]] = {"time": (slice(0, 1), ())}
        for name, bit in _PARTS.items():
            at, array = _offset(model, int(bit)), getattr(data, name)
            self.places[name] = (slice(at, at + array.size), array.shape)
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
        mujoco.mj_setState(self._model, self._data, state, INTEGRATION)
        for view, place in self.slices:
            view[:] = payload[place]

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the non-empty parts of the integration state by name, each ``(N, ...)``."""
        numbers = payloads[:, : self.state_nbytes].view(np.float64)
        found = {"time": numbers[:, 0]}
        for name in _PARTS:
            place, shape = self.places[name]
            if place.stop > place.start:
                found[name] = numbers[:, place].reshape(len(payloads), *shape)
        return found

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write `physics`, parts of the integration state by name, into `payload`.

        The derived arrays in `payload` are computed again. The integration state of the simulation
        itself does not change.

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
        values = {}
        for name, given in physics.items():
            shape = known[name].shape[1:]
            try:
                value = np.asarray(given, np.float64)
            except (TypeError, ValueError) as error:
                raise InputError(f"{name} must have the shape {shape}, got {given!r}") from error
            # If a state has larger numbers, MuJoCo's next step resets the simulation.
            if value.shape != shape or not (np.abs(value) <= mujoco.mjMAXVAL).all():
                raise InputError(
                    f"{name} must be numbers of shape {shape} between -{mujoco.mjMAXVAL:g} and "
                    f"{mujoco.mjMAXVAL:g}, MuJoCo's largest number, got {given!r}"
                )
            values[name] = value
        numbers = payload[: self.state_nbytes].view(np.float64)
        for name, value in values.items():
            numbers[self.places[name][0]] = value.ravel()
        current = np.empty(self.nbytes, np.uint8)
        self.read(current)
        try:
            self.write(payload)
            mujoco.mj_forward(self._model, self._data)
            self.read(payload)
        finally:
            self.write(current)


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


def derived(data: Any) -> dict[str, NDArray[Any]]:
    """Return every array of `data` that has a fixed size and is not in the integration state.

    Contacts and constraints are not included: their number changes from step to step, and they are
    stored elsewhere.
    """
    first = _address(data.qpos)
    found = {}
    for name in dir(data):
        array = getattr(data, name, None)
        if not isinstance(array, np.ndarray) or name in _PARTS or not array.size:
            continue
        if first <= _address(array) < first + data.nbuffer and array.flags.c_contiguous:
            found[name] = array
    return found


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


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
    digest.update(repr(model.opt).encode())
    return digest.hexdigest()


def _offset(model: Any, bit: int) -> int:
    """Return the offset of one part of the integration state, in units of 8 bytes.

    `bit` is the flag of the part; the parts are in the order of their flags.
    """
    below = INTEGRATION & (bit - 1)
    return int(mujoco.mj_stateSize(model, below)) if below else 0
