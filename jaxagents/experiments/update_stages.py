"""The stages of an update as separate programs, to be timed one by one.

Each does the work of its stage in `IPPOBase._update`, on inputs of the same shapes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxagents.compiler.program_costs import Program, compiled, count_flops, inputs_read
from jaxagents.compiler.random_keys import to_draw
from jaxagents.config import AgentConfig
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.networks.network import Network
from jaxagents.ppo.batches import Valuation
from jaxagents.ppo.minibatches import draw_minibatches, take_minibatch, unit_of
from jaxagents.ppo.policy_map import each_policy
from jaxagents.types import Batch, Metrics, Observation, PyTree, Runner, TimeStep, Transition


def programs_of_update(agent: IPPOBase, runner: Runner) -> dict[str, Program]:
    """Compile the stages of an agent's next update.

    ``shuffle``, the drawing and gathering of minibatches, is a part of ``actor`` and ``critic``.

    Args:
        agent: The agent.
        runner: State of its training. The ``kl_threshold`` should be infinite, because the
            matrix products of all actor epochs are counted.
    """
    n_policies = agent.policies.n_policies
    hyperparams = agent.hyperparams_of(runner)
    rng = to_draw(runner.rng)
    rngs = jax.random.split(rng, n_policies)
    after, transitions = jax.jit(agent.collector.collect)(runner, rng)
    values = compiled(agent.networks.value_rollout, after, transitions)
    _, valuation = values()
    advantages = compiled(partial(_estimate, agent), after, transitions, valuation, hyperparams)
    batch, _ = advantages()
    actor = (each_policy(agent._update_actor), runner.actor, batch, hyperparams, rngs)
    critic = (each_policy(agent._update_critic), runner.critic, batch, hyperparams, rngs)
    read = _read_by_losses(agent, runner, batch, hyperparams)
    return {
        "environment": compiled(
            partial(_step_environments, agent), runner, transitions.action, rng
        ),
        "policy": compiled(partial(_choose_actions, agent), runner, transitions, rng),
        "values": values,
        "advantages": advantages,
        # `count_flops` counts the body of the actor's while_loop once.
        "actor": compiled(*actor)._replace(flops=agent.config.actor_epochs * count_flops(*actor)),
        "critic": compiled(*critic)._replace(flops=count_flops(*critic)),
        "shuffle": compiled(each_policy(partial(_shuffle, agent)), read, rngs),
    }


def programs_of_block(agent: IPPOBase, runner: Runner, metrics: Metrics) -> dict[str, Program]:
    """Compile the stages that follow a block of updates, if they are configured.

    ``callbacks`` hands an evaluation to the host; it calls no callbacks and writes no checkpoints.

    Args:
        agent: The agent.
        runner: State of its training.
        metrics: Training metrics of an update.
    """
    programs = {}
    if agent.config.n_evals:
        rng = jax.random.key(agent.config.eval_seed)
        evaluate = partial(agent.player.evaluate, n_evals=agent.config.n_evals, greedy=True)
        programs["evaluation"] = compiled(evaluate, rng, agent.networks.actor_of(runner))
        metrics = metrics | programs["evaluation"]()
    if agent.recorder.has_work:
        failed = jnp.zeros((), bool)
        programs["callbacks"] = compiled(agent.run._report, runner, metrics, failed)
    return programs


def _step_environments(
    agent: IPPOBase, runner: Runner, actions: Array, rng: PRNGKeyArray
) -> tuple[PyTree, TimeStep]:
    """Step the environments with a rollout's actions ``[time, envs, actors, ...]``."""

    def step(state: PyTree, now: tuple[PRNGKeyArray, Array]) -> tuple[PyTree, TimeStep]:
        rng, action = now
        step, state = agent.environments.step(rng, state, agent.distribution.to_environment(action))
        return state, step._replace(info={}, final_state=None)

    _, rng_env = jax.random.split(rng)
    rngs = jax.random.split(rng_env, agent.config.rollout_length)
    return jax.lax.scan(step, runner.env_state, (rngs, actions))


def _choose_actions(
    agent: IPPOBase, runner: Runner, transitions: Transition, rng: PRNGKeyArray
) -> tuple[PyTree, Array, Array]:
    """Choose a rollout's actions again, step by step, from its observations."""

    def act(memory: PyTree, now: tuple[Observation, Array, Array]) -> tuple[PyTree, Any]:
        observation, begins, noise = now
        head, memory = agent.networks.heads(agent.networks.actor_of(runner), observation, memory)
        action = agent.distribution.sample(head, noise)
        return agent.networks.actor.reset_memory(memory, begins), (head, action)

    rng_noise, _ = jax.random.split(rng)
    noise = agent.networks.draw_noise(rng_noise, *transitions.active.shape)
    seen = (transitions.observation, transitions.begins, noise)
    memory, (heads, actions) = jax.lax.scan(act, runner.memory.actor, seen)
    return memory, actions, agent.distribution.log_prob(heads, actions)


def _estimate(
    agent: IPPOBase,
    runner: Runner,
    transitions: Transition,
    valuation: Valuation,
    hyperparams: HyperParameters,
) -> tuple[Batch, PyTree]:
    """Estimate advantages and make the value targets."""
    runner, batch = agent._estimate_advantages(runner, transitions, valuation, hyperparams)
    runner, batch, metrics = agent._make_targets(runner, batch, hyperparams)
    return batch, (runner.normalizers, metrics)


class _Arrays(NamedTuple):
    """Arrays of one policy's batch, ``[time, sequences, actors, ...]``."""

    of_actor: list[Array]
    of_critic: list[Array]


def _read_by_losses(
    agent: IPPOBase, runner: Runner, batch: Batch, hyperparams: HyperParameters
) -> _Arrays:
    """Select the arrays of the batches that the losses read: an update gathers no others."""
    actor_params, critic_params, one_batch, hyperparams = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),  # of one policy
        (runner.actor.params, runner.critic.params, batch, hyperparams),
    )

    def read(loss: Callable[..., PyTree], network: Network, params: PyTree) -> list[Array]:
        take = partial(take_minibatch, unit=unit_of(agent.config, network.recurrent))
        minibatch = jax.eval_shape(take, one_batch, jnp.zeros(1, jnp.int32))
        _, is_read, _ = inputs_read(loss, params, minibatch, hyperparams)
        leaves = zip(jax.tree.leaves(batch), jax.tree.leaves(is_read), strict=True)
        return [leaf for leaf, is_read in leaves if is_read]

    return _Arrays(
        of_actor=read(agent.actor_loss, agent.networks.actor, actor_params),
        of_critic=read(agent.critic_loss, agent.networks.critic, critic_params),
    )


def _shuffle(agent: IPPOBase, arrays: _Arrays, rng: PRNGKeyArray) -> _Arrays:
    """Draw and gather the minibatches of all epochs of one policy; return the last ones."""
    config, networks = agent.config, agent.networks
    actor_unit = unit_of(config, networks.actor.recurrent)
    critic_unit = unit_of(config, networks.critic.recurrent)
    return _Arrays(
        of_actor=_gather(config, arrays.of_actor, rng, actor_unit, config.actor_epochs),
        of_critic=_gather(config, arrays.of_critic, rng, critic_unit, config.critic_epochs),
    )


def _gather(
    config: AgentConfig, arrays: list[Array], rng: PRNGKeyArray, unit: str, n_epochs: int
) -> list[Array]:
    """Draw and gather the minibatches of some epochs; return the last one."""
    shape = (config.chunk_length, config.batch_size * config.n_chunks, config.minibatches_per_epoch)

    def gather(_: list[Array], indices: Array) -> tuple[list[Array], None]:
        return take_minibatch(arrays, indices, unit), None

    def run_epoch(minibatch: list[Array], rng: PRNGKeyArray) -> tuple[list[Array], None]:
        return jax.lax.scan(gather, minibatch, draw_minibatches(rng, *shape, unit))

    first = jax.eval_shape(lambda: gather([], draw_minibatches(rng, *shape, unit)[0])[0])
    zeros = [jnp.zeros(each.shape, each.dtype) for each in first]
    return jax.lax.scan(run_epoch, zeros, jax.random.split(rng, n_epochs))[0]
