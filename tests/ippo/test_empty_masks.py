"""Masks of JAX environments that leave a living actor no action: counted and reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.spaces import Discrete
from jaxagents.evaluation.diagnosis import Task, diagnose
from jaxagents.ippo.collector import count_empty_masks
from jaxagents.ppo.policy_map import make_policy_map
from jaxagents.types import Observation, Transition
from tests.agents import SMALL, opinionated_runner


class Corner(ja.Environment):
    """Episodes of 4 steps. Actor 0 is without an action at step 1; actor 1 dies in step 2.

    The dead actor's mask is empty at step 3.
    """

    n_actors = 2

    def __init__(self, space):
        self._space = space

    def action_space(self, params):
        return self._space

    def reset_env(self, rng, params):
        return self._observe(0), jnp.zeros((), jnp.int32)

    def step_env(self, rng, time, action, params):
        terminated = jnp.array([time >= 3, time >= 2])
        none = jnp.zeros(2, bool)
        return self._observe(time + 1), time + 1, jnp.ones(2), terminated, none, {}

    def _observe(self, time):
        sizes = self._space.shape if isinstance(self._space, ja.Box) else self._space.n_choices
        is_of_first_choice = jnp.arange(sum(sizes)) < sizes[0]
        lost = jnp.stack([time == 1, time == 3])[:, None] & is_of_first_choice
        return Observation(jnp.full((2, 1), time, jnp.float32), action_mask=~lost)


def agent_of(space, **changes):
    kind = ja.ContinuousIPPO if isinstance(space, ja.Box) else ja.DiscreteIPPO
    config = ja.AgentConfig(
        n_steps=2,
        eval_frequency=2,
        batch_size=3,
        minibatch_size=3,
        rollout_length=4,
        n_evals=2,
        progress_bar=False,
        actor_layers=SMALL,
        critic_layers=SMALL,
        **changes,
    )
    return kind(Corner(space), None, config)


@pytest.mark.parametrize(
    "space", [pytest.param(ja.Discrete(3), marks=pytest.mark.slow), ja.MultiDiscrete((2, 3))]
)
def test_samples_of_living_actors_without_an_action_are_counted(space):
    """Once in each of 3 episodes; of several choices, one that is lost counts. The dead do not."""
    agent = agent_of(space, parameter_sharing="independent")
    runner, metrics = agent.train(jax.random.key(0), ja.HyperParameters(gamma=0.5))
    np.testing.assert_array_equal(metrics["empty_masks"], [[np.nan, np.nan], [3.0, 0.0]])
    assert all(np.isfinite(values[1]).all() for values in metrics.values())
    (sentence,) = [each for each in agent.diagnose(runner, metrics) if "masked" in each]
    assert sentence.startswith(
        "The environment masked all actions of living actors of the policy 0, in up to 3 samples"
    )


@pytest.mark.slow
def test_they_are_counted_once_where_rollouts_are_replayed():
    agent = agent_of(ja.Discrete(3), advantages="vtrace", replay_updates=1)
    runner = opinionated_runner(agent)
    for _ in range(2):
        runner, metrics = agent.step(runner)
        np.testing.assert_array_equal(metrics["empty_masks"], [3.0])


def test_they_are_not_counted_where_players_wait():
    shape = (1, 1, 2)  # a step, an environment, two players
    masks = jnp.zeros((*shape, 3), bool)
    observation = Observation(jnp.zeros((*shape, 1)), masks, has_turn=jnp.array([[[True, False]]]))
    nothing = dict.fromkeys(Transition._fields)
    step = Transition(**nothing)._replace(observation=observation, active=jnp.ones(shape, bool))
    policies = make_policy_map("independent", 2, None)
    counts = count_empty_masks(step, Discrete(3), policies)
    np.testing.assert_array_equal(counts["empty_masks"], [1.0, 0.0])


@pytest.mark.slow
def test_masks_of_dimensions_are_not_counted():
    agent = agent_of(ja.Box(-1.0, 1.0, (2,)))
    assert "empty_masks" not in agent.step(opinionated_runner(agent))[1]


def test_an_environment_whose_masks_leave_actions_is_not_diagnosed():
    metrics = {"empty_masks": np.array([[np.nan], [0.0]]), "n_updates_done": np.array([0.0, 1.0])}
    assert diagnose(metrics, Task(discount=[0.9], max_episode_steps=None, n_actions=2)) == []
