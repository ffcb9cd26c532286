"""The state of one MuJoCo simulation as plain bytes.

MuJoCo starts each step from its "integration state" (time, positions, velocities, activations, the
warm start of the solver, controls, applied forces, mocap poses, ...). All other arrays of
``MjData`` are derived from it, but not always from the latest state: after ``mj_step``, bodies have
the positions from before the last integration. So a derived array is saved too if it is read before
the next step computes it again. See `remembered` for arrays that a step may not compute again.

See "The State" in the chapter "Computation" of MuJoCo's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError, SnapshotError
from plangym_like.states.rows import Row, padded

INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
# Parts of the integration state whose flag has another name than the array of MjData.
_NAMES = {"warmstart": "qacc_warmstart", "plugin": "plugin_state"}
# Parts with numbers of any size. MuJoCo resets a simulation with larger numbers than `mjMAXVAL`.
_ANY_SIZE = ("history", "plugin_state", "userdata")
_RECOMPUTED = """
act_dot actuator_force actuator_length actuator_moment actuator_velocity B_colind B_rowadr
B_rownnz body_awake body_awake_ind bvh_aabb_dyn bvh_active cacc cam_xmat cam_xpos cdof cdof_dot
cfrc_ext cfrc_int cinert crb cvel D_colind D_rowadr D_rownnz dof_awake_ind flexedge_J
flexedge_J_colind flexedge_J_rowadr flexedge_J_rownnz flexedge_length flexedge_velocity
flexelem_aabb flexelem_krot flexvert_J flexvert_length flexvert_xpos geom_xmat geom_xpos
geom_xquat light_xdir light_xpos M moment_colind moment_rowadr moment_rownnz parent_awake_ind
qacc qacc_smooth qDeriv qfrc_actuator qfrc_adhesion qfrc_bias qfrc_constraint qfrc_damper
qfrc_fluid qfrc_gravcomp qfrc_inverse qfrc_passive qfrc_smooth qfrc_spring qH qHDiagInv qLD
qLDiagInv qLDiagSqrtInv qLU qM sensordata site_xmat site_xpos site_xquat subtree_angmom
subtree_com subtree_linvel ten_J ten_J_colind ten_J_rowadr ten_J_rownnz ten_length ten_velocity
ten_wrapadr ten_wrapnum tree_awake wrap_obj wrap_xpos xanchor xaxis ximat xipos xiquat xmat
xpos xquat
"""
# Places in sparse matrices, which depend on the model alone.
_PLACES = """
C_colind C_rowadr C_rownnz D_diag M_colind M_rowadr M_rownnz mapD2M mapM2C mapM2D mapM2M
"""
# The arrays of MjData's buffer that every step computes from the integration state, or that only
# the model determines, in all versions of MuJoCo since 3.2.
RECOMPUTED = frozenset((_RECOMPUTED + _PLACES).split())
# Sleep counters, which stay the same because no tree may sleep.
ASLEEP = frozenset(("tree_asleep",))
# A copy of the model's list of plugins, and pointers to their data.
PLUGINS = frozenset(("plugin", "plugin_data"))
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
    *("light_xpos", "light_xdir", "flexvert_xpos", "flexedge_length", "actuator_length"),
    *("ten_length", "ten_wrapadr", "ten_wrapnum", "wrap_obj", "wrap_xpos"),
)


class PhysicsCodec:
    """Reads and writes the state of one simulation.

    Parameters
    ----------
    model, data : MjModel, MjData
    carried : mapping of str to array
        Contiguous arrays of the simulation that are saved with the integration state and with the
        arrays that `remembered` returns.

    Attributes
    ----------
    state_nbytes : int
        Bytes of the integration state, which comes first.
    nbytes : int
        Bytes of the whole state.
    carried : tuple of str
        The names of the carried arrays.
    is_integration : bool
        Whether the next step needs the integration state alone.
    lost : str
        What the next step needs although no state holds it; empty if there is nothing.
    slices : list of (array, slice)
        Each carried array as bytes, and its position in a payload.
    places : dict of str to (slice, shape)
        For each array of numbers, its position in a payload, in units of 8 bytes, and its shape.

    Raises
    ------
    SnapshotError
        Bodies of the model may sleep.
    """

    def __init__(self, model: Any, data: Any, carried: Mapping[str, NDArray[Any]]) -> None:
        if may_sleep(model):
            raise SnapshotError(
                'bodies of this model may fall asleep (<flag sleep="enable"/>), and MuJoCo does '
                "not restore which of them sleep; disable this flag, or use snapshot='replay'"
            )
        self._model, self._data = model, data
        self._size = int(mujoco.mj_stateSize(model, INTEGRATION))
        self.state_nbytes = 8 * self._size
        self.places = _parts(model, data)
        self._names = tuple(self.places)
        latent = remembered(model, data)
        self.is_integration = not latent
        carried = {**carried, **latent}
        self.carried = tuple(carried)
        self.slices, self.nbytes = lay_out(carried, self.state_nbytes, self.places)
        # The padding after arrays whose size is not a multiple of 8 bytes.
        ends = (place.stop for _, place in self.slices)
        self._gaps = [slice(end, padded(end)) for end in ends if end % 8]
        self.lost = "plugins have internal state (plugin_data)" if model.nplugin else ""

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
        numbers = payloads[:, : self.state_nbytes].view(np.float64)
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
        numbers = payload[: self.state_nbytes].view(np.float64)
        for name, value in values.items():
            numbers[self.places[name][0]] = value.ravel()
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
        # If a state has larger numbers, MuJoCo's next step resets the simulation.
        if value.shape != shape or not (np.abs(value) <= mujoco.mjMAXVAL).all():
            raise InputError(
                f"{name} must be numbers of shape {shape} between -{mujoco.mjMAXVAL:g} and "
                f"{mujoco.mjMAXVAL:g}, MuJoCo's largest number, got {given!r}"
            )
        return value


def may_sleep(model: Any) -> bool:
    """Return whether bodies of `model` may fall asleep (``<flag sleep="enable"/>``)."""
    flag = getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", None)
    return flag is not None and bool(model.opt.enableflags & int(flag))


def remembered(model: Any, data: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays that the next step may read from `data` before it computes them.

    They are not in the integration state. If `model` has flexible bodies, these are all arrays.
    Arrays that are new in a version of MuJoCo are included.
    """
    found = derived(data)
    if model.nflex:
        return found
    return {name: found[name] for name in found if not (name in RECOMPUTED or name in ASLEEP)}


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
    stored elsewhere. Pointers to the data of plugins are not included either.
    """
    first, parts = address_of(data.qpos), PARTS.keys() | PLUGINS
    found = {}
    for name in dir(data):
        array = getattr(data, name, None)
        if not isinstance(array, np.ndarray) or name in parts or not array.size:
            continue
        if first <= address_of(array) < first + data.nbuffer and array.flags.c_contiguous:
            found[name] = array
    return found


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first byte of `array`."""
    return int(array.__array_interface__["data"][0])


def copy_data(model: Any, source: Any, target: Any) -> None:
    """Copy the data of a simulation of `model`; before MuJoCo 3.3, only its integration state."""
    if hasattr(mujoco, "mj_copyData"):
        mujoco.mj_copyData(target, model, source)
        return
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, source, state, INTEGRATION)
    mujoco.mj_setState(model, target, state, INTEGRATION)


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
