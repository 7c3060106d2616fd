"""Mistakes raise errors of one line, before anything is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxagents as ja
from tests.agents import FAST, TINY, WALK, shared_agent, tiny
from tests.probes import Aim


class Constant(nn.Module):
    """A network whose output has a fixed width."""

    width: int

    @nn.compact
    def __call__(self, features):
        return nn.Dense(self.width)(features)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ja.DiscreteIPPO(Aim(), None, TINY), TypeError, "use jaxagents.ContinuousIPPO"),
        (lambda: ja.ContinuousIPPO(WALK, None, TINY), TypeError, "use jaxagents.DiscreteIPPO"),
        (
            lambda: ja.ContinuousIPPO(Aim(2, -np.inf, np.inf), None, tiny(squash=True)),
            ValueError,
            "use squash=False",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(parameter_sharing=(0, 1, 1))),
            ValueError,
            "names 3 actors, but the environment has 2",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(actor_network=Constant(5))),
            ValueError,
            r"actor_network maps .* \[2, 3, 5\]; the environment needs \[2, 3, 3\]",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(critic_network=Constant(1))),
            ValueError,
            r"critic_network maps .* \[2, 3, 1\]; the environment needs \[2, 3\]",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(parameter_sharing="team")),
            ValueError,
            "parameter_sharing='team', but the environment names no teams; give a policy index",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(shaped_reward_steps=9)),
            ValueError,
            "shaped_reward_steps=9, but Walk has no shaped reward; leave it None",
        ),
        (lambda: ja.DiscreteIPPO(object(), None, TINY), TypeError, "has no n_actors"),
    ],
)
def test_an_agent_that_does_not_fit_its_environment_is_refused_at_construction(
    build, error, message
):
    with pytest.raises(error, match=message) as raised:
        build()
    assert "\n" not in str(raised.value)


def test_numbers_of_64_bits_are_refused_at_construction():
    with jax.enable_x64(True), pytest.raises(ValueError, match="switch it off") as raised:
        ja.DiscreteIPPO(WALK, None, TINY)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("hyperparams", "message"),
    [
        (FAST.replace(gamma=1.5), "gamma=1.5 is out of range; it must be between 0 and 1"),
        (FAST.replace(ent_coeff=-0.1), "ent_coeff=-0.1"),
        (FAST.replace(eps_clip=float("nan")), "eps_clip=nan"),
        (FAST.replace(gae_lambda=jnp.zeros(3)), r"gae_lambda has shape \(3,\)"),
        (
            FAST.replace(actor_optimizer_params=ja.OptimizerParams(learning_rate=-1.0)),
            "actor_optimizer_params.learning_rate=-1.0",
        ),
    ],
)
def test_hyperparameters_out_of_range_are_refused_before_tracing(hyperparams, message):
    agent = shared_agent()
    for entry in (agent.train, agent.init):
        with pytest.raises(ValueError, match=message):
            entry(jax.random.key(0), hyperparams)


def test_methods_that_need_a_training_say_so():
    agent = shared_agent()
    with pytest.raises(ValueError, match="collect_training"):
        agent.eval(jax.random.key(0), 1)
    for entry in (agent.restore, agent.resume):
        with pytest.raises(ValueError, match="checkpoint_dir=None"):
            entry()
    with pytest.raises(ValueError, match="mode='newest'"):
        agent.restore(mode="newest")


@pytest.mark.parametrize("n_evals", [0, -1])
def test_an_evaluation_of_no_episodes_is_refused(n_evals):
    with pytest.raises(ValueError, match=f"n_evals={n_evals} episodes; evaluate at least 1"):
        shared_agent().eval(jax.random.key(0), n_evals)


@pytest.mark.parametrize("shape", [(2, 7), (2, 1), (2,), (4, 2, 3)])
@pytest.mark.parametrize("method", ["policy", "value"])
def test_an_observation_of_another_width_is_refused_by_its_shape(method, shape):
    agent = shared_agent()
    runner = agent.init(jax.random.key(0), FAST)
    apply = getattr(agent, method)
    assert apply(runner, jnp.zeros((2, 2))).shape == (2,)
    assert jax.vmap(lambda each: apply(runner, each))(jnp.zeros((5, 2, 2))).shape == (5, 2)
    with pytest.raises(ValueError, match="the observation has shape ") as raised:
        apply(runner, jnp.zeros(shape))
    assert str(raised.value).startswith(
        f"the observation has shape {shape}; the agent was built for (2, 2), the environment's own"
    )


def test_agent_id_and_time_are_no_part_of_the_given_observation():
    agent = shared_agent(agent_id=True, max_episode_steps=5, observe_time=True)
    runner = agent.init(jax.random.key(0), FAST)
    prepared = jnp.zeros(agent.environments.observation.features.shape)
    with pytest.raises(ValueError, match=r"has shape \(2, 5\); the agent was built for \(2, 2\)"):
        agent.policy(runner, ja.Observation(prepared, elapsed=jnp.array(0)))
