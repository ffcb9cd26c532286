"""Which of MuJoCo's fields are state, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import gymnasium.envs.mujoco
import mujoco

import plangym_like
from plangym_like.envs.mujoco import physics
from plangym_like.envs.mujoco.physics import PARTS
from plangym_like.errors import InputError, SnapshotError

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")

ASSETS = Path(gymnasium.envs.mujoco.__file__).parent / "assets"


def test_every_part_of_the_integration_state_is_an_array_of_the_data() -> None:
    data = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    assert [name for name in PARTS if not hasattr(data, name)] == []
    assert sum(PARTS.values()) == physics.INTEGRATION


# The names of the fields of states

EXTRAS = (
    '<body name="target" mocap="true" pos="3 3 3"><geom size=".1" contype="0"/></body>'
    '<body name="ball" pos="5 0 1"><freejoint/><geom size=".1"/></body></worldbody>'
    '<equality><weld body1="ball" body2="target" active="false"/>'
    '<connect body1="ball" anchor="0 0 0"/></equality>'
)
DELAYED = '<sensor><jointpos joint="bfoot" nsample="4" delay=".02"/></sensor>'
HAS_HISTORY = "history" in PARTS


@pytest.fixture
def crowded(tmp_path: Path) -> Any:
    """Return a cheetah whose integration state has all parts that its model can have."""
    text = (ASSETS / "half_cheetah.xml").read_text()
    text = text.replace("<worldbody>", '<size nuserdata="3"/><worldbody>', 1)
    text = text.replace("</worldbody>", EXTRAS + DELAYED * HAS_HISTORY, 1)
    more = '<general joint="bfoot" dyntype="filter" dynprm=".1" gainprm="0"/></actuator>'
    path = tmp_path / "crowded.xml"
    path.write_text(text.replace("</actuator>", more, 1))
    with plangym_like.make("HalfCheetah-v5", xml_file=str(path)) as env:
        yield env


def test_every_part_of_a_state_has_its_name(crowded: Any) -> None:
    env = crowded
    env.reset(seed=0)
    env.simulator.base.data.eq_active[:] = 1, 0
    env.simulator.base.data.userdata[:] = 1, np.nan, 1e30
    for _ in range(5):
        state = env.step(env.sample_action(), return_state=True).state
    named = env.view_state(state)
    parts = PARTS.keys() - {"plugin_state", "plastic"}
    assert named.keys() == parts and all(value.size for value in named.values())
    size = mujoco.mj_stateSize(env.simulator.base.model, physics.INTEGRATION)
    assert sum(value.size for value in named.values()) == size
    assert named["eq_active"].tolist() == [1, 0] and named["userdata"][2] == 1e30
    env.reset(seed=0)  # the random generator is then that of the state
    assert_same(env.make_state(**named), state)
    assert_same(env.make_state(state, **named), state)
    made = env.make_state(eq_active=[0, 1], mocap_pos=[[1, 2, 3]])
    assert env.view_state(made)["eq_active"].tolist() == [0, 1]
    for value in ([0.5, 1], [2, 0], [1]):
        with pytest.raises(InputError, match="eq_active must be"):
            env.make_state(eq_active=value)


# Models that are refused

CLOTH = (
    '<flexcomp name="cloth" type="grid" dim="2" count="4 4 1" spacing=".1 .1 .1" pos="4 0 .2"'
    ' radius=".02" mass="1"><edge equality="true"/></flexcomp>'
)
ASLEEP = '</worldbody><option><flag sleep="enable"/></option><worldbody>'
HAS_SLEEP = hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CLOTH, "flexible bodies"),
        pytest.param(
            ASLEEP,
            "may fall asleep",
            marks=pytest.mark.skipif(not HAS_SLEEP, reason="this MuJoCo has no sleep"),
        ),
    ],
    ids=["flexible", "asleep"],
)
def test_models_that_mujoco_does_not_restore_are_replayed(
    text: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "swimmer.xml"
    usual = (ASSETS / "swimmer.xml").read_text().replace(' integrator="RK4"', "")
    path.write_text(usual.replace("</worldbody>", f"{text}</worldbody>", 1))
    with pytest.raises(SnapshotError, match=f"{told}.*snapshot='replay'"):
        plangym_like.make("Swimmer-v5", xml_file=str(path))
    with plangym_like.make("Swimmer-v5", xml_file=str(path), snapshot="replay") as env:
        assert env.exactness == "exact"
