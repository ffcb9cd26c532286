"""Which of MuJoCo's fields are state, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
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


# Flexible bodies

CLOTH = (
    '<geom type="plane" size="9 9 1" contype="1" conaffinity="1" condim="3"/><flexcomp name="cloth"'
    ' type="grid" dim="2" count="4 4 1" spacing=".1 .1 .1" pos="4 0 .2" radius=".02" mass="1">'
    '<contact condim="3" solref="0.003"/><edge equality="{}"/>{}</flexcomp></worldbody>'
)
ELASTIC = '<elasticity young="3e4" poisson="0.1" thickness="1e-2" damping=".001"/>'
IPC = '<option integrator="discrete" solver="CG"><flag ipc="enable"/></option>'
HAS_ELASTICITY = hasattr(mujoco.MjModel, "flex_stiffness")
HAS_IPC = hasattr(mujoco.mjtEnableBit, "mjENBL_IPC")


@pytest.mark.parametrize(
    "cloth, option",
    [
        (CLOTH.format("true", ""), '<option integrator="Euler"/>'),
        pytest.param(
            CLOTH.format("false", ELASTIC),
            '<option integrator="Euler"/>',
            marks=pytest.mark.skipif(not HAS_ELASTICITY, reason="elasticity is a plugin here"),
        ),
        pytest.param(
            CLOTH.format("false", ELASTIC),
            IPC,
            marks=pytest.mark.skipif(not HAS_IPC, reason="this MuJoCo has no flag ipc"),
        ),
    ],
    ids=["edges", "elastic", "ipc"],
)
def test_flexible_bodies_go_on_as_in_gymnasium(cloth: str, option: str, tmp_path: Path) -> None:
    text = (ASSETS / "swimmer.xml").read_text().replace(' integrator="RK4"', "")
    text = text.replace("<worldbody>", f"{option}<worldbody>", 1)
    path = tmp_path / "cloth.xml"
    path.write_text(text.replace("</worldbody>", cloth, 1))
    alone: Any = gymnasium.make("Swimmer-v5", xml_file=str(path))
    space = alone.action_space
    space.seed(4)
    actions = np.stack([[space.sample() for _ in range(2)] for _ in range(25)])
    with plangym_like.make("Swimmer-v5", xml_file=str(path)) as env:
        assert env.exactness == "exact"
        states = np.repeat(env.reset(seed=5).state[None], 2, axis=0)
        results = []
        for chosen in actions:
            results.append(env.step_batch(chosen, states))
            states = results[-1].states
    for branch in range(2):
        alone.reset(seed=5)
        for result, action in zip(results, actions[:, branch], strict=True):
            obs, reward, *_ = alone.step(action)
            assert_same(result.obs[branch], obs)
            assert result.rewards[branch] == reward
    assert alone.unwrapped.data.qvel[5:].any()
    if option == IPC:
        assert alone.unwrapped.data.flexvert_lambda.any()
    alone.close()


@pytest.mark.skipif(
    not hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP"), reason="this MuJoCo has no sleep"
)
def test_models_whose_bodies_may_sleep_are_replayed(tmp_path: Path) -> None:
    text = (ASSETS / "hopper.xml").read_text()
    path = tmp_path / "hopper.xml"
    path.write_text(
        text.replace("<worldbody>", '<option><flag sleep="enable"/></option><worldbody>')
    )
    with pytest.raises(SnapshotError, match="may fall asleep .*snapshot='replay'"):
        plangym_like.make("Hopper-v5", xml_file=str(path))
    with plangym_like.make("Hopper-v5", xml_file=str(path), snapshot="replay") as env:
        assert env.exactness == "exact"
