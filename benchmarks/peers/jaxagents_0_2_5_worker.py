"""Version 0.2.5 of the package of our name, by another author, on hunting with our rules.

The package has no environments: it plays ours, through the interface of gymnax 0.0.6. Sizes and
networks are those of the hunting benchmark in that package's repository, except for discrete
actions and no early stopping.
"""

import hashable_annotations  # noqa: F401 (jaxagents 0.2.5 needs it)
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from gymnax.environments.environment import Environment, EnvParams
from jaxagents.utils.ippo_utils import AgentConfig, HyperParameters, OptimizerParams
from worker import serve

from jaxagents.ippo import IPPO

# hunting.yaml says the same.
N_UPDATES, N_ENVS, N_STEPS = 3, 128, 200
N_ACTORS, N_ACTIONS = 2, 4


@struct.dataclass
class State:
    """Positions of predator and prey, ``[actors, 2]``."""

    positions: jax.Array


class Hunting(Environment):
    """Our hunting/discrete; both actors share one observation, as that package has it."""

    n_actors = N_ACTORS

    def reset_env(self, rng, params):
        """Place both, at least 0.5 apart."""
        rng_predator, rng_offset, rng_side = jax.random.split(rng, 3)
        predator = jax.random.uniform(rng_predator, (2,), minval=-1.0, maxval=1.0)
        radius, along = jax.random.uniform(
            rng_offset, (2,), minval=jnp.array([0.5, -1.0]), maxval=1.0
        )
        sides = jnp.array([(1.0, along), (along, 1.0), (-1.0, along), (along, -1.0)])
        offset = radius * jax.random.choice(rng_side, sides)
        prey = jnp.mod(predator + offset + 1.0, 2.0) - 1.0
        state = State(jnp.stack([predator, prey]))
        return self.get_obs(state), state

    def step_env(self, rng, state, action, params):
        """Move both; the time limit is the agent's to keep."""
        directions = jnp.array([(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)])
        speeds = jnp.array([[0.06], [0.05]])
        state = State(jnp.clip(state.positions + speeds * directions[action], -1.0, 1.0))
        captured = jnp.linalg.norm(state.positions[1] - state.positions[0]) < 0.1
        reward = jnp.where(captured, jnp.array([10.0, 0.0]), jnp.array([0.0, 0.1]))
        return self.get_obs(state), state, reward, captured, {}

    def get_obs(self, state):
        """Return both positions, the vector from one to the other, and its length."""
        to_prey = (state.positions[1] - state.positions[0]) / 2
        distance = jnp.linalg.norm(to_prey, keepdims=True)
        return jnp.concatenate([state.positions.ravel(), to_prey, distance])


class Actor(nn.Module):
    """Logits of both actors ``[actors, actions]``, each by a network of its own."""

    config: AgentConfig

    @nn.compact
    def __call__(self, observation):
        """Apply both networks."""
        logits = [_mlp(N_ACTIONS)(observation) for _ in range(N_ACTORS)]
        return jnp.stack(logits).reshape(N_ACTORS, N_ACTIONS)


class Critic(nn.Module):
    """Values ``[actors]``, likewise."""

    config: AgentConfig

    @nn.compact
    def __call__(self, observation):
        """Apply both networks."""
        values = [_mlp(1)(observation) for _ in range(N_ACTORS)]
        return jnp.stack(values).reshape(N_ACTORS)


def _mlp(n_outputs):
    return nn.Sequential([nn.Dense(128), nn.tanh, nn.Dense(64), nn.tanh, nn.Dense(n_outputs)])


class DiscreteIPPO(IPPO):
    """What that package leaves to its users: a policy's probabilities, entropy and samples."""

    def _sample_actions(self, rng, training, obs):
        return jax.random.categorical(rng, training.apply_fn(training.params, obs))

    def _log_prob(self, training, params, obs, action):
        log_probs = jax.nn.log_softmax(training.apply_fn(params, obs))
        return jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]

    def _entropy(self, training, obs):
        log_probs = jax.nn.log_softmax(training.apply_fn(training.params, obs))
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)

    def policy(self, training, obs):
        """Choose the likeliest actions."""
        return jnp.argmax(training.apply_fn(training.params, obs), axis=1)


config = AgentConfig(
    n_steps=N_UPDATES,
    batch_size=N_ENVS,
    minibatch_size=16,
    rollout_length=N_STEPS,
    actor_epochs=10,
    critic_epochs=10,
    actor_network=Actor,
    critic_network=Critic,
    optimizer=optax.adam,
    eval_frequency=N_UPDATES,
    max_episode_steps=100,
)
hyperparams = HyperParameters(
    gamma=0.99,
    gae_lambda=0.97,
    eps_clip=0.2,
    ent_coeff=0.005,
    kl_threshold=jnp.inf,
    vf_coeff=1.0,
    actor_optimizer_params=OptimizerParams(learning_rate=3e-4, eps=1e-5, grad_clip=1.0),
    critic_optimizer_params=OptimizerParams(learning_rate=5e-4, eps=1e-5, grad_clip=1.0),
)
agent = DiscreteIPPO(
    Hunting(), EnvParams(max_steps_in_episode=100), config, eval_during_training=False
)


def train(seed: int) -> None:
    jax.block_until_ready(agent.train(jax.random.PRNGKey(seed), hyperparams))


serve(train, N_UPDATES * N_ENVS * N_STEPS)
