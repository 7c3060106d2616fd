"""Each kind of fault of an environment is found, and said in one sentence."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments import environment_check
from tests.environments.host.probes import Party


class Walk(ja.Environment):
    """Two actors at random positions walk left or right; the episode lasts 6 steps."""

    n_actors = 2

    def action_space(self, params: Any) -> Any:
        return ja.Discrete(2)

    def max_episode_steps(self, params: Any) -> int | None:
        return 6

    def reset_env(self, rng, params):
        state = {"position": jax.random.uniform(rng, (2,)), "time": jnp.int32(0)}
        return self.observe(state), state

    def step_env(self, rng, state, action, params):
        state = {
            "position": state["position"] + self.move(state, action),
            "time": state["time"] + 1,
        }
        reward = self.reward(state, action)
        return self.observe(state), state, reward, *self.ends(state["time"]), {}

    def observe(self, state):
        return jnp.stack([state["position"], state["position"][::-1]], axis=1)

    def move(self, state, action):
        return action * 0.2 - 0.1

    def reward(self, state, action):
        return action * 1.0

    def ends(self, time):
        return jnp.zeros(2, bool), jnp.full(2, time == 6)


class Branches(Walk):
    def reward(self, state, action):
        return action * (1.0 if state["time"] < 3 else 2.0)


class FlatReward(Walk):
    def reward(self, state, action):
        return action.sum() * 1.0


class NothingAvailable(Walk):
    def observe(self, state):
        mask = jnp.ones((2, 2), bool).at[1].set(state["time"] < 3)
        return ja.Observation(super().observe(state), action_mask=mask)


class SeesNaN(Walk):
    def observe(self, state):
        return super().observe(state).at[1, 0].add(jnp.where(state["time"] == 3, jnp.nan, 0.0))


class SeesInfinityAtTheEnd(Walk):
    def observe(self, state):
        return 1 / (state["time"] < 6) + super().observe(state)


class Padded(Walk):
    def observe(self, state):
        return jnp.pad(super().observe(state), ((0, 0), (1, 2)))


class Large(Walk):
    def observe(self, state):
        return super().observe(state).at[:, 1].set(500.0 * state["time"])


class EarnsNaN(Walk):
    def reward(self, state, action):
        return jnp.where(state["time"] == 4, jnp.nan, action)


class EarnsNothing(Walk):
    def reward(self, state, action):
        return jnp.zeros(2)


class Revives(Walk):
    def ends(self, time):
        return jnp.array([False, True]) & (time == 2), jnp.full(2, time == 6)

    def reward(self, state, action):
        return action * jnp.where(state["time"] > 2, jnp.array([1.0, 0.0]), 1.0)


class PaysTheDead(Walk):
    def __init__(self, rewards_after_death=False):
        self.rewards_after_death = rewards_after_death

    def ends(self, time):
        return jnp.array([False, True]) & (time >= 2), jnp.array([True, False]) & (time == 6)

    def reward(self, state, action):
        return jnp.array([0.0, 3.0])


class EndsAtOnce(Walk):
    def ends(self, time):
        return jnp.ones(2, bool), jnp.zeros(2, bool)


class Endless(Walk):
    def max_episode_steps(self, params):
        return None

    def ends(self, time):
        return jnp.zeros(2, bool), jnp.zeros(2, bool)


class LimitOf(Walk):
    def __init__(self, limit: int):
        self.limit = limit

    def max_episode_steps(self, params):
        return self.limit


class Deterministic(Walk):
    def reset_env(self, rng, params):
        return super().reset_env(jax.random.key(0), params)


class DrawsElsewhere(Walk):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def move(self, state, action):
        shape = jax.ShapeDtypeStruct((2,), np.float32)
        return jax.pure_callback(self.draw, shape, action, vmap_method="sequential")

    def draw(self, _):
        return self.rng.random(2, np.float32)


class CountsOutsideOfTheState(Walk):
    n_calls = 0

    def move(self, state, action):
        self.n_calls += 1
        return self.n_calls + 0.1 * action


class BreaksAtBounds(Walk):
    def action_space(self, params):
        return ja.Box(-1.0, 1.0, ())

    def reward(self, state, action):
        return jnp.log(jnp.where(jnp.abs(action) == 1, -1.0, 2.0))


class EarnsNaNOutsideOfJax(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._time += 1
        reward = np.nan if self._time == 40 else 1.0
        return np.zeros(1, np.float32), reward, False, self._time == 50, {}


def check(env: Any) -> list[tuple[str, str]]:
    """List errors and hints."""
    findings = ja.check_environment(env, None, n_steps=30)
    return [tuple(each) for each in findings if each.level != "ok"]


@pytest.mark.slow
def test_an_environment_without_faults_is_described():
    findings = ja.check_environment(Walk(), None, n_steps=30)
    assert [each.level for each in findings] == ["ok", "ok"]
    assert findings[0].text.startswith(
        "2 actors, each observing float32[2] and acting in Discrete(2); 5 episodes ended in 30 "
        "random steps, with a mean reward of "
    )
    assert "in a batch of 64" in findings[1].text


FAULTS = [
    (
        Branches(),
        "error",
        "TracerBoolConversionError: Attempted boolean conversion of traced array with shape "
        "bool[].",
    ),
    (
        FlatReward(),
        "error",
        "FlatReward.step_env returns reward of shape (); it must be (2,), one value per actor.",
    ),
    (
        NothingAvailable(),
        "error",
        "step 4: the action_mask of living actor 1 allows no action; leave it at least one.",
    ),
    (
        SeesNaN(),
        "error",
        "step 4: actor 1 sees nan as feature 0; return finite numbers.",
    ),
    (
        SeesInfinityAtTheEnd(),
        "error",
        "step 6: actor 0 sees inf as feature 0 after its action; return finite numbers.",
    ),
    (
        Padded(),
        "hint",
        "3 of 5 observed features never change, such as feature 0; leave them out, or look "
        "whether the environment sets them.",
    ),
    (
        Large(),
        "hint",
        "feature 1 reaches a magnitude of 2,500; scale it, or train with "
        "normalize_observations=True.",
    ),
    (
        EarnsNaN(),
        "error",
        "step 4: actor 0 earns a reward of nan; return finite numbers.",
    ),
    (
        EarnsNothing(),
        "hint",
        "no actor earned a reward other than 0 in 30 random steps; look whether the reward is set, "
        "or add a shaped_reward.",
    ),
    (
        Revives(),
        "error",
        "step 3: actor 1 has ended, but its terminated and truncated are False again; keep one "
        "True until the reset, or return the info acts_next if the actor comes back.",
    ),
    (
        PaysTheDead(),
        "error",
        "step 3: actor 1 earns a reward of 3.0 after its end; return 0 there, or set "
        "rewards_after_death = True.",
    ),
    (
        EndsAtOnce(),
        "hint",
        "each of 30 episodes ended in its first step; unless the task has one step, look at "
        "terminated and truncated.",
    ),
    (
        Endless(),
        "hint",
        "no episode ended in 30 steps, and evaluations wait for the end; truncate episodes, or "
        "train with max_episode_steps.",
    ),
    (
        LimitOf(5),
        "error",
        "step 6: the episode goes on beyond max_episode_steps, 5; truncate it there, or return "
        "the true limit.",
    ),
    (
        LimitOf(7),
        "error",
        "step 6: actor 0 is truncated after 6 steps, before max_episode_steps, 7; return the true "
        "limit, or terminated if the task has ended.",
    ),
    (
        Deterministic(),
        "hint",
        "other keys lead to the same 30 steps: the environment is deterministic; if it should not "
        "be, draw from the key or seed.",
    ),
    (
        DrawsElsewhere(),
        "error",
        "step 2: the observation differs when the same keys are played again; draw all random "
        "numbers from the key or seed, and reset all state.",
    ),
    (
        CountsOutsideOfTheState(),
        "error",
        "step 2: the observation differs outside of jax.jit; keep all that changes in the state "
        "that step returns, and draw random numbers from the key.",
    ),
    (
        gymnasium.make("CartPole-v1"),
        "error",
        "TimeLimit has no n_actors; an environment has n_actors, action_space(params), reset and "
        "step (see jaxagents.Environment), and jaxagents.make builds those of gymnax and JaxMARL. "
        "Give one of Gymnasium or PettingZoo as jaxagents.HostEnvironment(make_env).",
    ),
    (
        BreaksAtBounds(),
        "error",
        "step 1: at the bounds of Box() from -1 to 1, actor 0 earns a reward of nan; return "
        "finite numbers.",
    ),
]


@pytest.mark.parametrize(
    ("env", "level", "text"), FAULTS, ids=[type(env).__name__ for env, *_ in FAULTS]
)
def test_a_fault_is_found(env, level, text, monkeypatch):
    monkeypatch.setattr(environment_check, "_times", lambda _: "")  # compiles twice
    assert check(env) == [(level, text)]


def test_an_environment_may_say_that_it_pays_the_dead(monkeypatch):
    monkeypatch.setattr(environment_check, "_times", lambda _: "")
    env = PaysTheDead(rewards_after_death=True)
    assert check(env) == []
    assert check(ja.Side(env, [1], opponents=[ja.RandomOpponent()])) == []


def test_an_environment_outside_of_jax_is_described_and_its_own_errors_are_kept():
    assert check(ja.make("gymnasium/CartPole-v1", n_workers=0)[0]) == []
    env = ja.HostEnvironment(EarnsNaNOutsideOfJax, n_workers=0)
    (finding,) = ja.check_environment(env, n_steps=60)
    assert finding == (
        "error",
        "environment 0 at step 40 returned a reward that is NaN or infinite.",
    )


def test_the_step_in_which_a_vector_resets_belongs_to_no_episode():
    env, _ = ja.make("gymnasium/CartPole-v1", vectorized=True, max_episode_steps=5)
    findings = ja.check_environment(env, n_steps=30)
    assert [each.level for each in findings] == ["ok", "ok"]
    assert findings[0].text.endswith(
        "5 episodes ended in 30 random steps, with a mean reward of 1 a step"
    )


def test_no_step_is_too_few():
    with pytest.raises(ValueError, match="n_steps=0; play at least 1 step"):
        ja.check_environment(Walk(), n_steps=0)


def test_an_environment_without_living_agents_is_an_error():
    env = ja.HostEnvironment(lambda: Party([()]), n_workers=0)
    findings = ja.check_environment(env, n_steps=5)
    assert [(each.level, each.text) for each in findings] == [
        ("error", "no actor is alive in any of 5 steps; begin episodes with some.")
    ]
