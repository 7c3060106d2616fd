"""Tiny environments with the interfaces of Gymnasium and PettingZoo. They import no jax."""

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Stairs(gymnasium.Env):
    """A step of 0 or 1 upwards, which is also the reward; terminates at the top.

    Observes the height, which begins at the seed modulo 10 divided by 10, and the time.
    """

    def __init__(self, top: float = 100.0, limit: int = 1000):
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._top, self._limit = top, limit

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._height = 0.0 if seed is None else seed % 10 / 10
        self._time = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._time += 1
        self._height += float(action)
        ends = self._height >= self._top, self._time >= self._limit
        return self._observe(), float(action), *ends, {}

    def _observe(self):
        return np.array([self._height, self._time], np.float32)


class Drawn(Stairs):
    """Stairs whose picture has the brightness of the height, in 10 by ``width`` pixels.

    Taking the action 1 at a height of ``breaks_at`` breaks the pictures.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_fps": 20}

    def __init__(
        self, render_mode: str | None = None, width: int = 4, breaks_at: float = 1e9, **limits: Any
    ):
        super().__init__(**limits)
        self.render_mode = render_mode
        self._width, self._breaks_at = width, breaks_at

    def render(self):
        if self._height > self._breaks_at:
            return np.zeros((10, self._width), np.uint8)
        return np.full((10, self._width, 3), round(self._height), np.uint8)


class Borrowed(Stairs):
    """Stairs that can only be reset while a file exists."""

    def __init__(self, there: Path):
        super().__init__()
        self._there = there

    def reset(self, *, seed: int | None = None, options: Any = None):
        self._there.stat()
        return super().reset(seed=seed)


class Faulty(Stairs):
    """Stairs with a fault: where action 2 is taken, or once, where the file ``once`` exists."""

    def __init__(self, fault: str, once: Path | None = None):
        super().__init__()
        self.action_space = spaces.Discrete(3 if once is None else 2)
        self._fault, self._once = fault, once

    def step(self, action):
        observation, reward, *ends = super().step(action)
        if not self._is_due(action):
            return observation, reward, *ends
        if self._fault == "raise":
            raise ZeroDivisionError("the stairs\nare broken")
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "exit":
            os._exit(3)
        if self._fault == "hang":
            time.sleep(1000)
        if self._fault == "slow":
            until = time.process_time() + 0.5
            while time.process_time() < until:
                pass
            return observation, reward, *ends
        returned = {
            "nan": (np.array([np.nan, 0], np.float32), reward),
            "nan reward": (observation, np.nan),
            "shape": (observation[:1], reward),
            "dtype": (np.array(["high", "low"]), reward),
            "reward of two numbers": (observation, np.zeros(2)),
        }
        return *returned[self._fault], *ends

    def _is_due(self, action) -> bool:
        if self._once is None:
            return action == 2
        try:
            self._once.unlink()
        except FileNotFoundError:
            return False
        return True


class Unstartable(Stairs):
    """Stairs whose second construction fails, and all later ones: those in the workers."""

    def __init__(self, marker: Path):
        super().__init__()
        if marker.exists():
            raise OSError("no stairs left")
        marker.touch()


class DrawnFaulty(Faulty):
    """Faulty stairs that draw the height."""

    render_mode = "rgb_array"

    def render(self):
        return np.full((10, 4, 3), round(self._height), np.uint8)


class Observed(gymnasium.Env):
    """Observes a fixed value of any space, and ends after one step; the mask comes as an info."""

    def __init__(self, space: spaces.Space, value: Any, action_space: Any = None, mask: Any = None):
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.actions: list[Any] = []
        self._value, self._info = value, {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None):
        return self._value, self._info

    def step(self, action):
        self.actions.append(action)
        return self._value, 1.0, True, True, self._info


class Party:
    """PettingZoo's parallel interface: agents come and go by a plan.

    At time t the agents ``plan[t]`` play; the episode ends where the plan does. An agent observes
    its place in ``possible_agents`` (from 1) and the time, guests another 9; it earns its action
    plus 10 times that place. Agents that leave have terminated, or if named in ``cut`` truncated.
    """

    def __init__(self, plan, possible_agents=("host_0", "host_1", "guest_0"), cut=(), masked=False):
        self.metadata = {"name": "party"}
        self.possible_agents = list(possible_agents)
        self._plan, self._cut, self._masked = plan, cut, masked
        self.agents: list[str] = []

    def observation_space(self, agent):
        size = 3 if agent.startswith("guest") else 2
        return spaces.Box(-100.0, 100.0, (size,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3 if agent.startswith("guest") else 2)

    def reset(self, seed=None, options=None):
        self._time = 0
        self.agents = list(self._plan[0])
        return self._observe(self.agents), self._infos(self.agents)

    def step(self, actions):
        assert set(actions) == set(self.agents)
        assert all(self.action_space(name).contains(each) for name, each in actions.items())
        self._time += 1
        before = self.agents
        self.agents = list(self._plan[self._time]) if self._time < len(self._plan) else []
        gone = {name: name not in self.agents for name in before}
        everyone = list(dict.fromkeys([*before, *self.agents]))
        return (
            self._observe(everyone),
            {name: 10.0 * self._place(name) + actions[name] for name in before},
            {name: is_gone and name not in self._cut for name, is_gone in gone.items()},
            {name: is_gone and name in self._cut for name, is_gone in gone.items()},
            self._infos(everyone),
        )

    def state(self):
        return np.array([self._time, len(self.agents)], np.float64)

    state_space = spaces.Box(0.0, 100.0, (2,), np.float64)

    def render(self):
        return f"{len(self.agents)} at {self._time}"

    def close(self):
        pass

    def _place(self, name):
        return 1 + self.possible_agents.index(name) if name in self.possible_agents else 0

    def _observe(self, names):
        return {
            name: np.array([self._place(name), self._time, 9][: 3 if "guest" in name else 2], float)
            for name in names
        }

    def _infos(self, names):
        if not self._masked:
            return {name: {} for name in names}
        return {name: {"action_mask": self._mask(name)} for name in names}

    def _mask(self, name):
        mask = np.ones(self.action_space(name).n, np.int8)
        mask[0] = 0
        return mask


class Echo:
    """PettingZoo's parallel interface: 3 steps; both agents earn 1 for naming their own cue."""

    def __init__(self):
        self.metadata = {"name": "echo", "max_cycles": 3}
        self.possible_agents = ["caller_0", "caller_1"]

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._time = list(self.possible_agents), 0
        return self._observe(), {name: {} for name in self.agents}

    def step(self, actions):
        rewards = {
            name: float(actions[name] == cue)
            for name, cue in zip(self.possible_agents, self._cues, strict=True)
        }
        self._time += 1
        over = self._time == 3
        names = self.agents
        self.agents = [] if over else names
        falses = dict.fromkeys(names, False)
        return self._observe(), rewards, falses, dict.fromkeys(names, over), dict(falses)

    def close(self):
        pass

    def _observe(self):
        self._cues = self._random.integers(0, 2, 2)
        return {
            name: np.eye(2, dtype=np.float32)[cue]
            for name, cue in zip(self.possible_agents, self._cues, strict=True)
        }


class DrawnEcho(Echo):
    """Echo whose picture has the brightness of the time."""

    render_mode = "rgb_array"

    def render(self):
        return np.full((4, 6, 3), self._time, np.uint8)


class Visits:
    """PettingZoo's parallel interface: visitors come, leave and are replaced by a plan.

    At step t the visitors in ``plan[t][0]`` leave, by "terminated", "truncated" or without a flag,
    and then those in ``plan[t][1]`` come, as long as there is room. Each visit has a number of its
    own, from 1, which its visitor observes beside the time; a step of it earns the number plus 100
    times the time. ``ledger`` holds its rewards and its end.
    """

    def __init__(self, plan, first=("a", "b"), possible_agents=("a", "b")):
        self.metadata = {"name": "visits"}
        self.possible_agents = list(possible_agents)
        self._plan, self._first = plan, first

    def observation_space(self, agent):
        return spaces.Box(0.0, 1e6, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self._time, self._visit = 0, {}
        self.ledger: dict[int, list[Any]] = {}
        self._come(self._first)
        return self._observe(), {name: {} for name in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        leaving, coming = self._plan[self._time] if self._time < len(self._plan) else ({}, ())
        self._time += 1
        if self._time >= len(self._plan):
            leaving, coming = dict.fromkeys(self.agents, "terminated"), ()
        rewards = {name: float(visit + 100 * self._time) for name, visit in self._visit.items()}
        observations, before = self._observe(), list(self._visit)
        for name, visit in self._visit.items():
            self.ledger[visit][0] += rewards[name]
            self.ledger[visit][1] = leaving.get(name)
        self._visit = {name: visit for name, visit in self._visit.items() if name not in leaving}
        self._come(coming)
        flags = [
            {n: leaving.get(n) == kind for n in before if leaving.get(n) != "gone"}
            for kind in ("terminated", "truncated")
        ]
        return {**self._observe(), **observations}, rewards, *flags, {n: {} for n in self.agents}

    def close(self):
        pass

    def _come(self, names):
        for name in names:
            if name not in self._visit and len(self._visit) < len(self.possible_agents):
                self._visit[name] = len(self.ledger) + 1
                self.ledger[self._visit[name]] = [0.0, None]
        self.agents = list(self._visit)

    def _observe(self):
        return {name: np.array([v, self._time], np.float32) for name, v in self._visit.items()}


class Doors(gymnasium.Env):
    """Ten steps; a mask that allows the last of three actions comes with the infos of steps.

    The first comes at step ``first``. Other actions cost 1. ``none_at`` is a step whose mask allows
    no action.
    """

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, first: int = 1, limit: int = 10, none_at: int | None = None):
        self._first, self._limit, self._none_at = first, limit, none_at

    def reset(self, *, seed: int | None = None, options: Any = None):
        self._time, self._mask = 0, None
        return np.zeros(1, np.float32), {}

    def step(self, action):
        cost = float(self._mask is not None and not self._mask[action])
        self._time += 1
        if self._time >= self._first:
            self._mask = np.array([0, 0, self._time != self._none_at], np.int8)
        info = {} if self._mask is None else {"action_mask": self._mask}
        return np.array([self._time], np.float32), -cost, False, self._time == self._limit, info


class Crew(gymnasium.Env):
    """Three agents by Gymnasium's Tuples, the last of which observes and acts in larger spaces.

    Agent i (from 1) observes i plus a tenth of the seed, and the time, the last another 9; it earns
    its action plus 10 i. Agents terminate, each for itself, at the times ``ends``. All are cut at
    ``limit``. ``as_one`` gives one reward, that of the first, and one of each end for all.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_fps": 7}
    render_mode = "rgb_array"
    observation_space = spaces.Tuple(
        [spaces.Box(-100.0, 100.0, (size,), np.float32) for size in (2, 2, 3)]
    )
    action_space = spaces.Tuple([spaces.Discrete(n) for n in (2, 2, 3)])

    def __init__(self, ends=(100, 100, 100), limit=100, as_one=False, infos: Any = None):
        self.actions: list[tuple[int, ...]] = []
        self._ends, self._limit, self._as_one = np.array(ends), limit, as_one
        self._infos = {} if infos is None else infos

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._time, self._tenths = 0, 0.0 if seed is None else seed % 10 / 10
        return self._observe(), self._infos

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self._time += 1
        rewards = [10.0 * i + own for i, own in enumerate(action, 1)]
        ended, is_cut = (self._time >= self._ends).tolist(), self._time >= self._limit
        if self._as_one:
            return self._observe(), rewards[0], all(ended), is_cut, self._infos
        return self._observe(), rewards, ended, [is_cut] * 3, self._infos

    def render(self):
        return np.full((4, 6, 3), self._time, np.uint8)

    def _observe(self):
        return [
            np.array([i + self._tenths, self._time, 9][: box.shape[0]], np.float32)
            for i, box in enumerate(self.observation_space, 1)
        ]
