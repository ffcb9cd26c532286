"""Small environments and wrappers that the tests plan over; workers import them from here."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Nested(gymnasium.Env):
    """Nests in and out, chance, and an info key that only some steps have."""

    observation_space = spaces.Dict(
        place=spaces.Box(-9, 9, (2,), np.float32),
        cargo=spaces.Tuple((spaces.Discrete(50), spaces.MultiBinary(3))),
    )
    action_space = spaces.Dict(move=spaces.Box(-1, 1, (2,), np.float32), pick=spaces.Discrete(3))

    def __init__(self) -> None:
        self.place = np.zeros(2, np.float32)
        self.cargo = 0

    def _observe(self) -> Any:
        bits = np.array([self.cargo >> bit & 1 for bit in range(3)], np.int8)
        return {"place": self.place.copy(), "cargo": (self.cargo, bits)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.cargo = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        drift = self.np_random.normal(0, 0.1, 2).astype(np.float32)
        self.place = np.clip(self.place + action["move"] + drift, -9, 9).astype(np.float32)
        self.cargo = min(self.cargo + int(action["pick"]), 49)
        info = {"picked": int(action["pick"])} if action["pick"] else {}
        ended = bool(np.abs(self.place).max() > 4)
        return self._observe(), float(self.place.sum()), ended, self.cargo >= 49, info


class Teller(gymnasium.Env):
    """Observes text, which is no array."""

    observation_space = spaces.Text(40)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.told = ""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.told = ""
        return self.told, {}

    def step(self, action: Any) -> Any:
        self.told = (self.told + "abc"[action])[-40:]
        return self.told, float(action), self.told.endswith("cc"), False, {}


class Pair(Nested):
    """Observes a tuple of arrays."""

    observation_space = spaces.Tuple(
        (Nested.observation_space["place"], spaces.Dict(cargo=Nested.observation_space["cargo"]))
    )

    def _observe(self) -> Any:
        seen = super()._observe()
        return seen["place"], {"cargo": seen["cargo"]}


class Parcel(Nested):
    """Observes text and sequences, and takes tuples."""

    observation_space = spaces.Dict(
        label=spaces.Text(9), contents=spaces.Sequence(Nested.observation_space["place"])
    )
    action_space = spaces.Tuple((spaces.Discrete(6), spaces.Discrete(3)))

    def step(self, action: Any) -> Any:
        move = np.full(2, action[0] / 6, np.float32)
        return super().step({"move": move, "pick": action[1]})

    def _observe(self) -> Any:
        label = "abcdefghi"[: self.cargo % 9 + 1]
        return {"label": label, "contents": (self.place.copy(),) * (self.cargo % 4)}


class Letter(Teller):
    """Takes sequences of numbers."""

    action_space = spaces.Sequence(spaces.Discrete(6))

    def step(self, action: Any) -> Any:
        return super().step(sum(map(int, action)) % 3)


class Labelled(gymnasium.Env):
    """Observes arrays and text in one tree, as MiniGrid does; what it shows may be replaced."""

    observation_space = spaces.Dict(
        place=spaces.Box(-99, 99, (2,), np.float32),
        told=spaces.Tuple((spaces.Text(9), spaces.Discrete(5))),
    )
    action_space = spaces.Discrete(4)
    harmless = spaces.Discrete(3)

    def __init__(self) -> None:
        self.place = 0

    def _observe(self, place: Any = None) -> Any:
        place = np.full(2, self.place, np.float32) if place is None else place
        return {"place": place, "told": ("abc"[self.place % 3], self.place % 5)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(9))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.place += int(action)
        # Three numbers do not fit.
        wrong = np.zeros(3, np.float32) if action == 3 else None
        return self._observe(wrong), 1.0, False, False, {}


class Fuse(gymnasium.Env):
    """Raises when it is told to, and says where it stood."""

    observation_space = spaces.Box(-1e9, 1e9, (), np.float64)
    action_space = spaces.Discrete(4)
    harmless = spaces.Discrete(3)

    def __init__(self) -> None:
        self.load = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.load = 0
        return np.array(0.0), {}

    def step(self, action: Any) -> Any:
        if action == 3:
            raise ArithmeticError(f"the fuse blew at a load of {self.load}")
        self.load += int(action)
        return np.array(float(self.load)), 1.0, False, False, {}


class Levers(gymnasium.Env):
    """Actions that are integers without being `Discrete`."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Box(0, 200, (2,), np.uint8)

    def __init__(self) -> None:
        self.levers = np.zeros(2, np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.levers = np.zeros(2, np.uint8)
        return self.levers.copy(), {}

    def step(self, action: Any) -> Any:
        self.levers = action.copy()
        return self.levers.copy(), float(action.sum()), False, False, {}


class Sled(gymnasium.Env):
    """A sled on ice; its state is two numbers."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.array([self.np_random.normal(), 0.0])
        return self.x.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.x = self.x + 0.1 * np.array([self.x[1], action - 1.0])
        far = abs(self.x[0])
        return self.x.astype(np.float32), -far, bool(far > 2), False, {}

    def save_state(self) -> Any:
        return self.x

    def load_state(self, saved: Any) -> None:
        self.x = saved


class Sleds(Sled):
    """The same, many at a time."""

    chunks = 0

    def step_states(self, states: Any, actions: Any) -> Any:
        Sleds.chunks += 1
        states = states + 0.1 * np.stack([states[:, 1], actions - 1.0], 1)
        far = abs(states[:, 0])
        return states, states.astype(np.float32), -far, far > 2, np.zeros(len(far), bool)


class Scaled(gymnasium.Wrapper):
    """Counts steps and scales rewards: a wrapper with arguments and with memory."""

    def __init__(self, env: gymnasium.Env, scale: float = 2.0) -> None:
        super().__init__(env)
        self.scale = scale
        self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return obs, self.scale * float(reward), terminated, truncated, {**info, "steps": self.steps}


class BanditTree(gymnasium.Env):
    """Two choices in a row, then a reward of 1 with the probability of the choices, or that itself.

    The second of three first choices is the best on average, the last one with the best second.
    """

    MEANS = np.array([[0.1, 0.2, 0.3], [0.6, 0.6, 0.6], [0.0, 0.9, 0.1]])
    observation_space = spaces.Discrete(14)
    action_space = spaces.Discrete(3)

    def __init__(self, *, random: bool = False) -> None:
        self.random = random
        self.choices: tuple[int, ...] = ()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.choices = ()
        return 0, {}

    def step(self, action: Any) -> Any:
        self.choices += (int(action),)
        if len(self.choices) == 1:
            return 1 + self.choices[0], 0.0, False, False, {}
        reward = float(self.MEANS[self.choices[:2]])
        if self.random:
            reward = float(self.np_random.random() < reward)
        return 4 + 3 * self.choices[0] + self.choices[1], reward, True, False, {}
