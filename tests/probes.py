"""Tiny environments with optima and values that can be derived by hand."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.protocol import Environment
from jaxagents.environments.spaces import Box, Discrete, MultiDiscrete
from jaxagents.types import Observation


class TruncatedCycle(Environment):
    """Positions 0 -> 1 -> 2 -> 0, reward 1 for leaving 0, truncated after every single step."""

    n_actors = 1

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, rng, params):
        position = jax.random.randint(rng, (), 0, 3)
        return jax.nn.one_hot(position, 3)[None], position

    def step_env(self, rng, state, action, params):
        position = (state + 1) % 3
        reward = (state == 0).astype(jnp.float32)[None]
        yes = jnp.ones(1, bool)
        return jax.nn.one_hot(position, 3)[None], position, reward, ~yes, yes, {}


class Clock(Environment):
    """Nothing to see or to choose: reward 1 for each of the 4 steps that are the task."""

    n_actors = 1
    time_limits = "terminal"
    n_steps = 4

    def max_episode_steps(self, params: Any) -> int:
        return self.n_steps

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, rng, params):
        return jnp.zeros((1, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        over = jnp.broadcast_to(state + 1 >= self.n_steps, 1)
        return jnp.zeros((1, 1)), state + 1, jnp.ones(1), jnp.zeros(1, bool), over, {}


class Coordination(Environment):
    """One step: all earn the fraction of actors that choose the action they observe."""

    def __init__(self, n_actors: int = 2, n_actions: int = 3):
        self.n_actors = n_actors
        self._n_actions = n_actions

    def action_space(self, params: Any) -> Discrete:
        return Discrete(self._n_actions)

    def reset_env(self, rng, params):
        shown = jax.random.randint(rng, (self.n_actors,), 0, self._n_actions)
        return jax.nn.one_hot(shown, self._n_actions), shown

    def step_env(self, rng, state, action, params):
        right = (action == state).astype(jnp.float32)
        reward = jnp.full(self.n_actors, right.mean())
        over = jnp.ones(self.n_actors, bool)
        observation = jax.nn.one_hot(state, self._n_actions)
        return observation, state, reward, over, ~over, {"won": right.min()}


class Chords(Environment):
    """One step of two choices, of 2 and 3 actions: half a point for each that names its cue.

    The last action of the second choice is masked, and no cue.
    """

    n_actors = 2

    def action_space(self, params: Any) -> MultiDiscrete:
        return MultiDiscrete((2, 3))

    def reset_env(self, rng, params):
        cues = jax.random.bernoulli(rng, shape=(self.n_actors, 2)).astype(jnp.int32)
        return self._observe(cues), cues

    def step_env(self, rng, state, action, params):
        reward = jnp.mean(action == state, axis=1, dtype=jnp.float32)
        over = jnp.ones(self.n_actors, bool)
        return self._observe(state), state, reward, over, ~over, {}

    def _observe(self, cues):
        mask = jnp.array([True, True, True, True, False])
        return Observation(
            features=2.0 * cues - 1.0,
            action_mask=jnp.broadcast_to(mask, (self.n_actors, len(mask))),
        )


class Tide(Environment):
    """One step: 1 for the action that is the observed cue, and a hundred times an observed sign.

    The sign, which no action changes, makes almost all of the rewards' variance.
    """

    n_actors = 1

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, rng, params):
        state = jax.random.bernoulli(rng, shape=(2,)).astype(jnp.int32)
        return 2.0 * state[None] - 1.0, state

    def step_env(self, rng, state, action, params):
        is_right = (action[0] == state[1]).astype(jnp.float32)
        reward = 100.0 * (2.0 * state[0] - 1.0) + is_right
        over = jnp.ones(1, bool)
        observation = 2.0 * state[None] - 1.0
        return observation, state, reward[None], over, ~over, {"is_right": is_right}


class Aim(Environment):
    """One step: each actor earns minus its squared distance from its observed target."""

    def __init__(
        self, n_actors: int = 2, low: float = -1.0, high: float = 1.0, n_dimensions: int = 2
    ):
        self.n_actors = n_actors
        self._box = Box(low, high, (n_dimensions,))

    def action_space(self, params: Any) -> Box:
        return self._box

    def reset_env(self, rng, params):
        shape = (self.n_actors, *self._box.shape)
        target = jax.random.uniform(rng, shape, minval=-0.8, maxval=0.8)
        return target, target

    def step_env(self, rng, state, action, params):
        reward = -jnp.sum((action - state) ** 2, axis=-1)
        over = jnp.ones(self.n_actors, bool)
        return state, state, reward, over, ~over, {}


class Walk(Environment):
    """Actors walk on a line, independently of each other.

    Actor i dies after ``deaths[i]`` steps; the episode is truncated after ``limit`` steps. The
    reward is the action, and 0 after death.
    """

    def __init__(self, deaths: tuple[int, ...] = (100, 100), limit: int = 5, masked: bool = False):
        self.n_actors = len(deaths)
        self._deaths = jnp.array(deaths)
        self._limit = limit
        self._masked = masked

    def action_space(self, params: Any) -> Discrete:
        return Discrete(3)

    def reset_env(self, rng, params):
        state = {
            "time": jnp.zeros((), jnp.int32),
            "position": jax.random.normal(rng, (self.n_actors,)),
        }
        return self._observe(state), state

    def step_env(self, rng, state, action, params):
        alive = state["time"] < self._deaths
        state = {
            "time": state["time"] + 1,
            "position": state["position"] + 0.1 * (action - 1) + 0.05,
        }
        terminated = state["time"] >= self._deaths
        truncated = jnp.broadcast_to(state["time"] >= self._limit, terminated.shape) & ~terminated
        reward = jnp.where(alive, action.astype(jnp.float32), 0.0)
        return self._observe(state), state, reward, terminated, truncated, {}

    def _observe(self, state):
        features = jnp.stack([state["position"], jnp.sin(3 * state["position"])], axis=-1)
        if not self._masked:
            return features
        # The last action is masked for actors on the right.
        mask = jnp.ones((self.n_actors, 3), bool).at[:, 2].set(state["position"] < 0)
        return Observation(features=features, action_mask=mask)


class RealWalk(Walk):
    """Walk with a continuous action of one dimension."""

    def action_space(self, params: Any) -> Box:
        return Box(0.0, 2.0, (1,))

    def step_env(self, rng, state, action, params):
        return super().step_env(rng, state, action[:, 0], params)


class Screen(RealWalk):
    """RealWalk whose actors see an image of 8 by 5 pixels with 2 channels."""

    def _observe(self, state):
        phase = jnp.arange(8.0 * 5 * 2).reshape(8, 5, 2)
        return jnp.sin(state["position"][:, None, None, None] + phase)


class Team(Walk):
    """Walk in which all actors, dead ones included, earn 1 per step until the episode is over."""

    rewards_after_death = True

    def step_env(self, rng, state, action, params):
        observation, state, reward, *rest = super().step_env(rng, state, action, params)
        return observation, state, jnp.ones_like(reward), *rest


class Roles(Environment):
    """One step: all observe the same, and each earns 1 for choosing its own index."""

    def __init__(self, n_actors: int = 2):
        self.n_actors = n_actors

    def action_space(self, params: Any) -> Discrete:
        return Discrete(self.n_actors)

    def reset_env(self, rng, params):
        return jnp.ones((self.n_actors, 1)), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        reward = (action == jnp.arange(self.n_actors)).astype(jnp.float32)
        over = jnp.ones(self.n_actors, bool)
        return jnp.ones((self.n_actors, 1)), state, reward, over, ~over, {}


class Shaped(Roles):
    """One step with a shaped reward of 10 and a reward of 0."""

    def step_env(self, rng, state, action, params):
        observation, state, reward, *ends, _ = super().step_env(rng, state, action, params)
        info = {"shaped_reward": jnp.full_like(reward, 10.0)}
        return observation, state, jnp.zeros_like(reward), *ends, info


class Recall(Environment):
    """Each actor observes one of two cues at the first step and earns 1 for naming it at the last.

    Observations: the cue (one-hot, at the first step only), and whether it is the last step.
    Earlier actions have no effect.
    """

    def __init__(self, n_actors: int = 2, n_steps: int = 4):
        self.n_actors = n_actors
        self._n_steps = n_steps

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, rng, params):
        cue = jax.random.randint(rng, (self.n_actors,), 0, 2)
        state = {"cue": cue, "time": jnp.zeros((), jnp.int32)}
        return self._observe(state), state

    def step_env(self, rng, state, action, params):
        asked = state["time"] == self._n_steps - 1
        reward = (asked & (action == state["cue"])).astype(jnp.float32)
        state = {**state, "time": state["time"] + 1}
        over = jnp.full(self.n_actors, asked)
        return self._observe(state), state, reward, over, jnp.zeros_like(over), {}

    def _observe(self, state):
        shown = jnp.where(state["time"] == 0, jax.nn.one_hot(state["cue"], 2), 0.0)
        asked = jnp.full((self.n_actors, 1), state["time"] == self._n_steps - 1, jnp.float32)
        return jnp.concatenate([shown, asked], axis=-1)


class Pennies(Environment):
    """Matching pennies, for a few steps: actor 0 earns 1 if both choose the same, else actor 1.

    Actors observe their own number and the time.
    """

    n_actors = 2
    teams = (0, 1)
    time_limits = "terminal"

    def __init__(self, n_steps: int = 1):
        self._n_steps = n_steps

    def max_episode_steps(self, params: Any) -> int:
        return self._n_steps

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, rng, params):
        return jnp.array([[0.0, 0.0], [1.0, 0.0]]), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        is_same = (action[0] == action[1]).astype(jnp.float32)
        observation = jnp.stack([jnp.arange(2.0), jnp.full(2, state + 1.0)], axis=1)
        over = jnp.full(2, state + 1 >= self._n_steps)
        return observation, state + 1, jnp.array([is_same, 1 - is_same]), ~over & False, over, {}


def heads(rng, observation):
    """Play action 0, as an opponent."""
    return jnp.zeros(len(observation.features), jnp.int32)


def tails(rng, observation):
    """Play action 1, as an opponent."""
    return jnp.ones(len(observation.features), jnp.int32)


class Returning(Walk):
    """Walk of 7 steps in which actors come back.

    The second actor dies in step 2 and comes back after step 4; at the end of step 5 another takes
    the position of the first.
    """

    def __init__(self, limit: int = 7):
        super().__init__((100, 100), limit)

    def max_episode_steps(self, params: Any) -> int:
        return self._limit

    def step_env(self, rng, state, action, params):
        observation, moved, _, _, truncated, info = super().step_env(rng, state, action, params)
        step = moved["time"]
        is_dead = (step >= 2) & (step < 4)
        terminated = jnp.stack([step == 5, is_dead])
        acts_next = jnp.stack([step < self._limit, ~is_dead & (step < self._limit)])
        reward = jnp.ones(2)
        return observation, moved, reward, terminated, truncated, info | {"acts_next": acts_next}


class RealReturning(Returning, RealWalk):
    """Likewise, with an action of one real number."""
