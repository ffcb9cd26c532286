"""Environments made from a MuJoCo model and vectorised functions."""

from __future__ import annotations

import os
import pathlib
import weakref
from typing import Any

import mujoco
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like import MujocoModel, make_mujoco
from plangym_like.batch.arrays import Inputs
from plangym_like.envs.mujoco import batch
from plangym_like.envs.mujoco.own_model import BLOCK
from plangym_like.envs.mujoco.physics import model_digest
from plangym_like.errors import EnvApiError, InputError
from plangym_like.planners import CEM, MPPI

ARM = """
<mujoco model="arm">
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1"/>
    <body name="upper" pos="0 0 0.6">
      <joint name="shoulder" type="ball" damping="0.1"/>
      <geom name="bone" type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" range="-2 2" limited="true"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
        <site name="hand" pos="0.3 0 0"/>
        <camera name="eye" pos="0 0 0.1"/>
      </body>
    </body>
    <body name="ball" pos="0.2 0 0.9">
      <freejoint name="flies"/>
      <geom size="0.05" mass="0.1"/>
    </body>
  </worldbody>
  <tendon><fixed name="string"><joint joint="elbow" coef="1"/></fixed></tendon>
  <actuator>
    <motor name="bend" joint="elbow" gear="10" ctrlrange="-1 1" ctrllimited="true"/>
    <general name="muscle" tendon="string" dyntype="filter" dynprm="0.1" ctrlrange="0 2"
      ctrllimited="true"/>
  </actuator>
  <sensor><gyro name="turn" site="hand"/><framepos objtype="body" objname="ball"/></sensor>
  <keyframe><key name="bent" qpos="1 0 0 0 1.5 0.2 0 0.3 1 0 0 0"/></keyframe>
</mujoco>
"""
WEIGHTS = np.random.default_rng(0).normal(size=(12, 3))


def reach(data: Any) -> Any:
    """Reward the hand for being near the ball; with a product whose rounding depends on N."""
    away = np.linalg.norm(data.site("hand").xpos - data.body("ball").xpos, axis=1)
    return -away + 1e-3 * (data.qpos @ WEIGHTS).sum(axis=1)


def look(data: Any) -> Any:
    parts = (data.joint("elbow").qpos, data.joint("shoulder").qvel, data.sensor("turn").data)
    return np.concatenate([*parts, data.act, data.tendon("string").length[:, None]], axis=1)


def fell(data: Any) -> Any:
    return data.body("ball").xpos[:, 2] < 0.1


def shaken(data: Any, rng: np.random.Generator) -> None:
    data.qvel[:] = rng.normal(size=len(data.qvel))


def arm(**options: Any) -> MujocoModel:
    functions = {"reward": reach, "observation": look, "terminated": fell, "reset": shaken}
    return MujocoModel(**{"model": ARM, "n_substeps": 4, **functions, **options})


def played(env: Any, actions: np.ndarray) -> tuple[list[Any], list[Any], list[float]]:
    """Return the states, observations and rewards of an episode that is played straight through."""
    states, observations, rewards = [], [], []
    env.reset(seed=3)
    for action in actions:
        step = env.step(action)
        states.append(env.get_state())
        observations.append(step.obs)
        rewards.append(step.reward)
        if step.terminated:
            break
    return states, observations, rewards


@pytest.mark.parametrize("n_workers", first_of([2, None]))
def test_rows_are_those_of_an_episode_played_straight_through(n_workers: int | None) -> None:
    actions = np.random.default_rng(1).uniform([-1, 0], [1, 2], (30, 2))
    with plangym_like.make(arm(), autoreset=False) as alone:
        states, observations, rewards = played(alone, actions)
        start = alone.reset(seed=3).state
    assert len(states) > 5
    with plangym_like.make(arm(), n_workers) as env:
        env.reset(seed=99)
        before = np.stack([start, *states[:-1]])
        order = np.random.default_rng(2).permutation(np.arange(len(before)).repeat(3))
        step = env.step_batch(actions[order], before[order])
        for row, at in enumerate(order):
            assert step.states[row].tobytes() == states[at].tobytes()
            assert step.obs[row].tobytes() == observations[at].tobytes()
            assert step.rewards[row] == rewards[at]
        plans = np.repeat(actions[None, : len(states)], 3, axis=0)
        rollout = env.rollout_batch(plans, start)
        assert (rollout.rewards == rewards).all()
        assert rollout.states[1].tobytes() == states[-1].tobytes()


def accelerations(data: Any) -> Any:
    """Return what belongs to the last substep, with arrays of the new state among it."""
    bodies = data.cvel.reshape(len(data.time), -1)
    return np.concatenate([data.qacc, data.qfrc_bias, data.sensordata, bodies], axis=1)


ROBOTS: dict[str, Any] = {
    "arm": lambda: arm(),
    "accelerations": lambda: arm(observation=accelerations),
    "states": lambda: arm(reward=lambda data: data.qpos[:, 0], n_substeps=3),
    "HalfCheetah-v5": lambda: "HalfCheetah-v5",
    "Hopper-v5": lambda: "Hopper-v5",
}


@pytest.mark.skipif(batch.mujoco_batch is None, reason="this MuJoCo has no mujoco.batch")
@pytest.mark.parametrize("name", first_of(list(ROBOTS), 2))
def test_the_engine_of_mujoco_gives_the_bytes_of_our_own_loop(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings there
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = []
    for n_workers, engines in ((2, {2}), (None, {1}), (None, set())):
        if not engines:
            monkeypatch.setattr(batch, "mujoco_batch", None)
        with plangym_like.make(ROBOTS[name](), n_workers=n_workers, audit="off") as env:
            rng, space = np.random.default_rng(0), env.action_space
            plans = rng.uniform(space.low, space.high, (70, 6, *space.shape))
            held, state = rng.integers(1, 5, 140), env.reset(seed=0).state
            speeds = rng.uniform(-1, 1, (70, len(env.view_state(state)["qvel"])))
            # The fastest diverge, and MuJoCo starts them again.
            speeds *= 10.0 ** (np.arange(70) % 11)[:, None]
            wild = np.stack([env.make_state(qvel=speed) for speed in speeds])
            steps = [env.step_batch(plans[:, 0], wild)]
            steps.append(env.step_batch(plans[:, :2].reshape(140, -1), state, dt=held))
            rollout = env.rollout_batch(plans, wild, return_observations=True)
            kernel = env.simulator.kernel_for(plans)
            assert kernel._engines.keys() - {1} == engines - {1}
            assert bool(env.stats.rows_sent) == (n_workers == 2 and name == "Hopper-v5")
            # Not those whose actions are held for different times, and few plans.
            for many, dt in ((70, held[:70]), (9, 1)):
                given = Inputs(many, 6, plans[:many], wild[:many], dt, None)
                assert not env.simulator.takes_threads(given)
            used = [weakref.ref(each) for each in kernel._engines.values()]
            del kernel
        assert not any(each() for each in used), "their threads end when the environment is closed"
        parts = [(step.states, step.obs, step.rewards, step.terminateds) for step in steps]
        arrays = [*parts[0], *parts[1], rollout.states, rollout.observations, rollout.rewards]
        found.append([array.tobytes() for array in arrays])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("n_workers", [2, None])
def test_an_error_of_a_function_names_its_row(n_workers: int | None) -> None:
    def reward(data: Any) -> Any:
        if (data.time > 1.0).any():
            raise ValueError("too late")
        return data.time

    with make_mujoco(ARM, reward=reward, n_workers=n_workers) as env:
        states = np.repeat(env.reset(seed=0).state[None], 600, axis=0)
        states[333] = env.make_state(time=1.0)
        with pytest.raises(ValueError, match="too late") as failure:
            env.step_batch(np.zeros((600, 2)), states)
    assert failure.value.__notes__ == ["(in row 333 of a batch of 600)"]


def test_python_callbacks_of_mujoco_are_called() -> None:
    with make_mujoco(ARM, reward=reach, n_substeps=2) as env:
        state, actions = env.reset(seed=0).state, np.ones((3, 2))
        first = env.step_batch(actions, state)

        def push(model: Any, data: Any) -> None:
            data.qfrc_applied[:] = 1.0

        mujoco.set_mjcb_control(push)
        try:
            pushed = env.step_batch(actions, state)
            assert (env.view_state(pushed.states)["qfrc_applied"] == 1.0).all()
        finally:
            mujoco.set_mjcb_control(None)
        assert env.step_batch(actions, state).states.tobytes() == first.states.tobytes()


def test_functions_see_the_new_state() -> None:
    seen: dict[str, Any] = {}

    def reward(data: Any) -> Any:
        seen.update(hand=data.site("hand").xpos, turn=data.sensor("turn").data, qpos=data.qpos)
        return data.time

    with make_mujoco(ARM, reward=reward, n_substeps=3) as env:
        env.reset(seed=0)
        step = env.step([1.0, 1.0])
        assert step.reward == pytest.approx(0.015)
        model = mujoco.MjModel.from_xml_string(ARM)
        data = mujoco.MjData(model)
        parts = env.view_state(env.get_state())
        data.qpos, data.qvel, data.act = parts["qpos"], parts["qvel"], parts["act"]
        mujoco.mj_forward(model, data)
        np.testing.assert_array_equal(seen["qpos"][0], data.qpos)
        np.testing.assert_array_equal(seen["hand"][0], data.site("hand").xpos)
        np.testing.assert_array_equal(seen["turn"][0], data.sensor("turn").data)


def test_each_kind_of_object_has_its_data() -> None:
    model = mujoco.MjModel.from_xml_string(ARM)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    expected = {
        "geom": data.geom("bone").xpos,
        "camera": data.cam("eye").xpos,
        "actuator": data.actuator("bend").ctrl[0],
        "flies": data.joint("flies").qpos,
        "shoulder": data.joint("shoulder").qvel,
        "length": data.tendon("string").length[0],
        "lower": data.body("lower").xquat,
    }
    seen: dict[str, Any] = {}

    def reward(data: Any) -> Any:
        seen.update(
            geom=data.geom("bone").xpos,
            camera=data.camera("eye").xpos,
            actuator=data.actuator("bend").ctrl,
            flies=data.joint("flies").qpos,
            shoulder=data.joint(0).qvel,
            length=data.tendon("string").length,
            lower=data.body("lower").xquat,
        )
        return data.time

    env = MujocoModel(ARM, reward=reward, reset="bent")()
    env.reset()
    env.evaluate(env._current)
    for name, value in expected.items():
        assert seen[name].shape == (BLOCK, *np.shape(value))
        np.testing.assert_array_equal(seen[name][0], value)
        with pytest.raises(ValueError, match="read-only"):
            seen[name][0] = 0


def test_models_of_all_kinds_with_meshes(tmp_path: pathlib.Path) -> None:
    corners = ["0 0 0", "1 0 0", "0 1 0", "0 0 1"]
    lines = [f"v {corner}" for corner in corners] + ["f 1 3 2", "f 1 2 4", "f 1 4 3", "f 2 3 4"]
    (tmp_path / "rock.obj").write_text("\n".join(lines))
    path = tmp_path / "scene.xml"
    path.write_text(
        '<mujoco><asset><mesh name="rock" file="rock.obj" scale=".1 .1 .1"/></asset><worldbody>'
        '<body name="rock"><freejoint/><geom type="mesh" mesh="rock"/></body></worldbody></mujoco>'
    )
    model = mujoco.MjModel.from_xml_path(str(path))
    binary = tmp_path / "scene.mjb"
    mujoco.mj_saveModel(model, str(binary))
    spec = mujoco.MjSpec.from_file(str(path))
    found = []
    for given in (path, str(path), binary, spec, model):
        with make_mujoco(given, reward=_height, n_substeps=5) as env:
            state = env.reset(seed=0).state
            found.append(env.step_batch(np.zeros((2, 0)), state).states.tobytes())
    assert len(set(found)) == 1
    path.unlink()
    (tmp_path / "rock.obj").unlink()
    with make_mujoco(model, reward=_height, n_substeps=5, n_workers=2, isolate=True) as env:
        state = env.reset(seed=0).state
        assert env.step_batch(np.zeros((2, 0)), state).states.tobytes() == found[0]


def _height(data: Any) -> Any:
    return data.body("rock").xpos[:, 2]


def test_vectorised_environments_take_models() -> None:
    vec = plangym_like.make_vec(arm(), 5, max_episode_steps=20)
    alone = plangym_like.make(arm(), max_episode_steps=20)
    vec.reset(seed=7)
    actions = np.random.default_rng(5).uniform([-1, 0], [1, 2], (5, 2))
    found = vec.step(actions)
    for lane in range(5):
        alone.reset(seed=7 + lane)
        step = alone.step(actions[lane])
        assert step.obs.tobytes() == found[0][lane].tobytes()
        assert step.reward == found[1][lane]
    vec.close()
    alone.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": 3}, "observation must be a function"),
        ({"n_substeps": 0}, "n_substeps must be"),
        ({"reset": "straight"}, "reset must be a keyframe"),
        ({"control_range": (0, [1, 2, 3])}, "control_range must be a pair"),
        ({"control_range": (1, 0)}, "with low <= high"),
        ({"fields": ["xpos", "nonsense"]}, "fields must be arrays of MjData, got 'nonsense'"),
    ],
)
def test_an_invalid_argument_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        arm(**options)


@pytest.mark.parametrize("model", ["<mujoco><nonsense/></mujoco>", "nowhere.xml", 3])
def test_a_model_that_cannot_be_loaded_is_an_error(model: Any) -> None:
    with pytest.raises(InputError, match="MuJoCo cannot load the model|model must be an MjModel"):
        make_mujoco(model, reward=reach)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reward": lambda data: data.qpos}, EnvApiError, "of shape \\(64, 12\\)"),
        ({"terminated": lambda data: data.time}, EnvApiError, "true or false"),
        ({"observation": lambda data: data.time}, EnvApiError, "observation must return numbers"),
        ({"reward": lambda data: data.qpso}, AttributeError, "data has no 'qpso'"),
        ({"reward": lambda data: data.body("leg").xpos}, InputError, "no body 'leg'"),
        ({"reward": lambda data: data.sensor("turn").xpos}, AttributeError, "a sensor has data"),
        ({"reward": lambda data: data.subtree_linvel}, AttributeError, "not every step computes"),
    ],
)
def test_a_function_that_is_wrong_is_an_error(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plangym_like.make(arm(**options))


def test_an_array_that_is_read_in_some_states_only_is_named() -> None:
    def reward(data: Any) -> Any:
        return data.xpos[:, 1, 2] if data.time[0] > 0.5 else data.time

    rest = {"observation": None, "terminated": None, "reward": reward}
    with plangym_like.make(arm(**rest)) as env:
        env.reset(seed=0)
        env.step([0.0, 0.0])
        with pytest.raises(AttributeError, match=r"add fields=\['xpos'\]"):
            env.step_batch([[0.0, 0.0]], env.get_state(), dt=30)
    with plangym_like.make(arm(**rest, fields=["xpos"], n_substeps=120)) as env:
        env.reset(seed=0)
        assert env.step([0.0, 0.0]).reward == pytest.approx(0.6)


def test_bounds_of_controls() -> None:
    free = ARM.replace('ctrlrange="-1 1" ctrllimited="true"', "")
    with make_mujoco(free, reward=reach) as env:
        assert env.action_space.high.tolist() == [np.inf, 2.0]
        with pytest.raises(InputError, match="bound"):
            MPPI(env)
    with make_mujoco(free, reward=reach, control_range=(-3, [3, 1])) as env:
        assert env.action_space.low.tolist() == [-3.0, -3.0]
        assert env.action_space.high.tolist() == [3.0, 1.0]
    unmoved = make_mujoco("<mujoco/>", reward=lambda data: data.time)
    with unmoved as env, pytest.raises(InputError, match="nothing to plan"):
        CEM(env)


def wide(data: Any) -> Any:
    """Reward with products of matrices that BLAS rounds by the place of a row."""
    hidden = np.tanh(data.qpos @ MANY)
    return ((hidden @ SQUARE) * hidden).sum(axis=1)


MANY = np.random.default_rng(1).normal(size=(12, 100))
SQUARE = np.random.default_rng(2).normal(size=(100, 100))


@pytest.mark.parametrize("reward", first_of([wide, reach]))
def test_rewards_do_not_depend_on_the_place_of_a_row(reward: Any) -> None:
    actions = np.random.default_rng(0).uniform([-1, 0], [1, 2], (140, 2))
    found = []
    for n_workers in (None, 2):
        with plangym_like.make(arm(reward=reward), n_workers) as env:
            state = env.reset(seed=0).state
            found.append(env.step_batch(actions, state).rewards)
            found.append(env.step_batch(actions[::-1], state).rewards[::-1])
            one_by_one = [env.step(action, state=state).reward for action in actions[:70]]
            np.testing.assert_array_equal(found[-1][:70], one_by_one)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_functions_may_use_their_memory_again() -> None:
    memory, flags = np.empty((BLOCK, 12)), np.empty(BLOCK, bool)
    with plangym_like.make(
        arm(
            observation=lambda data: np.multiply(data.qpos, 2, out=memory),
            terminated=lambda data: np.greater(data.qvel[:, 3], 0, out=flags),
        )
    ) as env:
        state = env.reset(seed=0).state
        actions = np.random.default_rng(0).uniform([-1, 0], [1, 2], (150, 2))
        step = env.step_batch(actions, state)
        np.testing.assert_array_equal(step.obs, 2 * env.view_state(step.states)["qpos"])
        speeds = env.view_state(step.states)["qvel"][:, 3]
        np.testing.assert_array_equal(step.terminateds, speeds > 0)
        assert 0 < step.terminateds.sum() < 150


def test_a_reset_may_change_the_model() -> None:
    def drawn(data: Any, rng: np.random.Generator) -> None:
        data.model.body_mass[3] = rng.uniform(0.1, 5.0)
        data.model.opt.gravity[2] = rng.uniform(-20, -5)

    with plangym_like.make(arm(reset=drawn)) as env:
        assert env.exactness == "exact"
        states = [env.reset(seed=seed).state for seed in range(4)]
        action = [1.0, 1.0]
        alone = [env.step(action, state=state).obs.tobytes() for state in states]
        assert len(set(alone)) == 4
        again = env.step_batch([action] * 8, np.stack(states[::-1] * 2)).obs
        assert [obs.tobytes() for obs in again] == alone[::-1] * 2


def heavier(factor: float) -> Any:
    model = mujoco.MjModel.from_xml_string(ARM)
    model.body_mass[1:] *= factor
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def test_versions_are_models_or_the_arrays_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [heavier(2), heavier(5)]
    given[1].opt.gravity[2] = -3
    masses, gravity = [one.body_mass for one in given], [one.opt.gravity for one in given]
    listed = arm(models=given)()
    named = arm(models={"body_mass": masses, "opt.gravity": gravity})()
    for one, other in zip(listed.versions, named.versions, strict=True):
        assert model_digest(one) == model_digest(other)
    for wrong in (5, "<mujoco/>", pathlib.Path("arm.xml"), heavier(2)):
        with pytest.raises(InputError, match="models must be a sequence of models, or a dict, got"):
            arm(models=wrong)
    for fields, message in (
        ({"body_mas": masses}, "'body_mas', which is not an array of floats"),
        ({"geom_contype": [[1, 1, 1, 1]]}, "not an array of floats"),
        ({"body_mass": 2.0}, r"of shape \(K, 4\)"),
        ({"body_mass": [masses[0] * np.nan]}, "finite"),
        ({"body_mass": masses, "opt.gravity": gravity[:1]}, "the same length"),
        ({"body_ipos": np.ones((1, 4, 3))}, "body_ipos"),  # which the compiler took to be 0
    ):
        with pytest.raises(InputError, match=message):
            arm(models=fields)
    monkeypatch.setattr(mujoco, "__version__", "3.16.1")
    with pytest.raises(InputError, match=r"'geom_size', but MuJoCo 3.16.1 does not compute"):
        arm(models={"geom_size": [heavier(1).geom_size]})


@pytest.mark.parametrize("engine", first_of([True, False]))
def test_rows_step_with_the_version_of_the_model_that_they_name(
    engine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not engine:
        monkeypatch.setattr(batch, "mujoco_batch", None)
    plans = np.random.default_rng(0).uniform([-1, 0], [1, 2], (140, 5, 2))
    source = arm(models=[heavier(2), heavier(5)])
    with plangym_like.make(source) as env, plangym_like.make(source, 2) as apart:
        assert env.exactness == "exact"
        drawn = [env.view_state(env.reset(seed=seed).state)["model"] for seed in range(30)]
        assert set(drawn) == {0, 1, 2}
        state = env.reset(seed=0).state
        roots = np.stack([env.make_state(state, model=row % 3) for row in range(140)])
        step, rollout = env.step_batch(plans[:, 0], roots), apart.rollout_batch(plans, roots)
        assert env.view_state(step.states)["model"].tolist() == [row % 3 for row in range(140)]
        for row in range(6):
            alone = env.step(plans[row, 0], state=roots[row], return_state=True)
            assert alone.state.tobytes() == step.states[row].tobytes()
            assert alone.obs.tobytes() == step.obs[row].tobytes()
        for number, factor in enumerate([1, 2, 5]):
            parts = {name: env.view_state(state)[name] for name in ("qpos", "qvel")}
            with plangym_like.make(arm(model=heavier(factor))) as fixed:
                root = fixed.make_state(**parts)
                found = fixed.rollout_batch(plans[number::3], root).rewards
            assert found.tobytes() == rollout.rewards[number::3].tobytes()
        for given in (3, 0.5, np.nan, [0, 1]):
            with pytest.raises(InputError, match="model must be a number below 3, got"):
                env.make_state(state, model=given)
    with pytest.raises(InputError, match="models must differ in numbers only"):
        arm(models=["<mujoco/>"])


# Problems with known answers

TIME, HORIZON = 0.05, 10
BALL = f"""
<mujoco><option timestep="{TIME}" gravity="0 0 0"/><worldbody><body>
  <joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/>
</body></worldbody><actuator>
  <motor joint="x" ctrlrange="-20 20" ctrllimited="true"/>
</actuator></mujoco>
"""


@pytest.mark.parametrize(("risk", "best"), [(1.0, 12), (0.5, 15), (0.0, 15)])
def test_plans_for_several_versions_of_a_model(risk: float, best: float) -> None:
    """Twice the speed after one action u is u / 10 or u / 30, by the mass, and should be 1."""

    def reward(data: Any) -> Any:
        return -((2 * data.qvel[:, 0] - 1) ** 2)

    with make_mujoco(BALL, reward=reward, models={"body_mass": [[0, 3]]}) as env:
        state = env.make_state(env.reset(seed=0).state, model=0)
        plan = CEM(env, horizon=1, batch=50).plan(state, budget=3_000, seed=0)
        assert plan.actions[0, 0] == pytest.approx(10, abs=0.1)
        variants = [{"model": 0}, {"model": 1}]
        planner = CEM(env, horizon=1, batch=50, variants=variants, risk=risk)
        plan = planner.plan(state, budget=3_000, seed=0)
        assert plan.spent.transitions <= 3_000
        assert plan.actions[0, 0] == pytest.approx(best, abs=0.1)
        assert plan.score == plan.replay(env) == pytest.approx(-((best / 10 - 1) ** 2), abs=0.02)


def squares(data: Any) -> Any:
    costs = data.qpos**2 + 0.1 * data.qvel**2 + 0.01 * data.ctrl**2
    return -costs[:, 0]


def riccati() -> tuple[np.ndarray, np.ndarray]:
    """Return the gain of the first action, and the matrix of the costs of the whole plan."""
    # MuJoCo moves with the new speed.
    a, b = np.array([[1, TIME], [0, 1]]), np.array([[TIME**2], [TIME]])
    costs, gain = np.zeros((2, 2)), np.zeros((1, 2))
    for _ in range(HORIZON):
        after = costs + np.diag([1, 0.1])
        gain = np.linalg.solve(0.01 + b.T @ after @ b, b.T @ after @ a)
        costs = a.T @ after @ (a - b @ gain)
    return gain[0], costs


def test_the_first_actions_are_those_of_the_linear_quadratic_regulator() -> None:
    gain, costs = riccati()
    with make_mujoco(BALL, reward=squares) as env:
        env.reset(seed=0)
        for number, start in enumerate(np.eye(2)):
            state = env.make_state(qpos=start[:1], qvel=start[1:])
            plan = CEM(env, horizon=HORIZON, batch=200).plan(state, budget=100_000, seed=0)
            assert plan.actions[0, 0] == pytest.approx(-gain[number], rel=0.01)
            assert -plan.score == pytest.approx(start @ costs @ start, rel=1e-4)
