"""Tiny agents for tests, shared between them: the programs of an agent are compiled only once."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.hyperparameters import as_arrays, per_policy
from jaxagents.training.named_arrays import strip_keys
from jaxagents.types import Batch, Metrics, NetworkState, Transition
from tests.probes import Coordination, Walk

SMALL = ja.Layers(hidden_sizes=(8,), memory_size=8)
TINY = ja.AgentConfig(
    n_steps=3,
    batch_size=4,
    minibatch_size=2,
    rollout_length=6,
    eval_frequency=2,
    n_evals=2,
    normalize_observations=False,
    normalize_values=False,
    progress_bar=False,
    actor_layers=SMALL,
    critic_layers=SMALL,
)
FAST = ja.HyperParameters(
    actor_optimizer_params=ja.OptimizerParams(learning_rate=1e-2),
    critic_optimizer_params=ja.OptimizerParams(learning_rate=1e-2),
)
WALK, COORDINATION = Walk(), Coordination()


def tiny(**changes: Any) -> ja.AgentConfig:
    return dataclasses.replace(TINY, **changes)


def chunked(rollout_length: int, chunk_length: int, **changes: Any) -> ja.AgentConfig:
    """Return a recurrent configuration of trajectories in chunks."""
    lengths = {"rollout_length": rollout_length, "recurrent_chunk_length": chunk_length}
    return tiny(recurrent="gru", **lengths, **changes)


def shared_agent(
    env: Any = WALK, agent_class: type[ja.IPPOBase] = ja.DiscreteIPPO, **changes: Any
) -> ja.IPPOBase:
    """Return the agent of an environment and a configuration: the same one for all tests."""
    return _agent(agent_class, env, tiny(**changes))


@cache
def _agent(agent_class: type[ja.IPPOBase], env: Any, config: ja.AgentConfig) -> ja.IPPOBase:
    return agent_class(env, None, config)


@cache
def trained(agent: ja.IPPOBase, seed: int = 0) -> tuple[ja.Runner, Metrics]:
    """Train an agent, or return the result of an earlier test."""
    return agent.train(jax.random.key(seed), FAST)


def begin(agent: ja.IPPOBase, **hyperparams: Any) -> ja.Runner:
    return agent.init(jax.random.key(0), FAST.replace(**hyperparams))


def opinionated_runner(agent: ja.IPPOBase) -> ja.Runner:
    """Return a runner with parameters so large that all it observes and remembers has an effect.

    The initialisers of the networks, which take long to compile, are left out.
    """
    shapes = agent.runners.shapes()

    def draw(network: NetworkState, seed: int) -> NetworkState:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), network)
        return zeros._replace(params=_draw(network.params, seed))

    runner = _begin_without_networks(agent, jax.random.key(0))
    return runner.replace(actor=draw(shapes.actor, 1), critic=draw(shapes.critic, 2))


@partial(jax.jit, static_argnums=0)
def _begin_without_networks(agent: ja.IPPOBase, rng: jax.Array) -> ja.Runner:
    return agent.runners.build(rng, as_arrays(FAST)).replace(actor=(), critic=())


def _draw(params: Any, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype), params
    )


@partial(jax.jit, static_argnums=0)
def collect(
    agent: ja.IPPOBase, runner: ja.Runner, rng: jax.Array
) -> tuple[ja.Runner, Transition, Batch]:
    """Collect a rollout; return the runner after it, the transitions and each policy's batch."""
    runner, transitions = agent.collector.collect(runner, rng)
    runner, batch = make_batch(agent, runner, transitions)
    return runner, transitions, batch


@partial(jax.jit, static_argnums=0)
def log_ratio(agent: ja.IPPOBase, runner: ja.Runner, batch: Batch) -> jax.Array:
    return jax.vmap(agent.networks.log_ratio)(runner.actor.params, batch)


def make_batch(
    agent: ja.IPPOBase, runner: ja.Runner, transitions: Transition
) -> tuple[ja.Runner, Batch]:
    """Do what an update does between its rollout and the epochs of its actors."""
    hyperparams = per_policy(runner.hyperparams, agent.policies.n_policies)
    runner, valuation = agent.networks.value_rollout(runner, transitions)
    return agent.estimate_advantages(runner, transitions, valuation, hyperparams)


def with_hyperparams(runner: ja.Runner, **hyperparams: Any) -> ja.Runner:
    """Replace hyperparameters, without compiling anew."""
    arrays = jax.tree.map(jnp.float32, hyperparams)
    return runner.replace(hyperparams=runner.hyperparams.replace(**arrays))


def rate(learning_rate: float) -> ja.OptimizerParams:
    return ja.OptimizerParams(learning_rate=learning_rate)


def of_policy(tree: Any, policy: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[policy], tree)


def all_finite(tree: Any) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


def assert_trees_close(actual: Any, expected: Any, **tolerance: float) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), actual, expected)


def assert_trees_equal(actual: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, strip_keys(actual), strip_keys(expected))


def largest_change(before: Any, after: Any) -> float:
    changes = jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), before, after)
    return float(max(jax.tree.leaves(changes)))
