"""The stages of an update as programs of their own, to be timed one by one.

Each does what `IPPOBase._update` does in its place, on what that would hand it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxagents.compiler.program_costs import Program, compiled, count_flops, inputs_read
from jaxagents.compiler.random_keys import to_draw
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.base import IPPOBase
from jaxagents.ppo.batches import Valuation
from jaxagents.ppo.minibatches import draw_minibatches, take_minibatch, unit_of
from jaxagents.ppo.policy_map import each_policy
from jaxagents.types import Batch, Metrics, Observation, Runner, TimeStep, Transition


def programs_of_update(agent: IPPOBase, runner: Runner) -> dict[str, Program]:
    """Compile the stages of the update that comes next.

    ``shuffle`` is a part of ``actor`` and ``critic``.

    Args:
        agent: The agent.
        runner: Where it stands. Its ``kl_threshold`` should be infinite: what is counted of the
            actor's matrix products is of all epochs.
    """
    n_policies = agent.policies.n_policies
    hyperparams = agent._scheduled(runner)
    rng = to_draw(runner.rng)
    rngs = jax.random.split(rng, n_policies)
    after, transitions = jax.jit(agent._collect_rollout)(runner, rng)
    values = compiled(agent.networks.value_rollout, after, transitions)
    _, valuation = values()
    advantages = compiled(partial(_estimate, agent), after, transitions, valuation, hyperparams)
    batch, _ = advantages()
    actor = (each_policy(agent._update_actor), runner.actor, batch, hyperparams, rngs)
    critic = (each_policy(agent._update_critic), runner.critic, batch, hyperparams, rngs)
    dealt = _read_by_losses(agent, runner, batch, hyperparams)
    return {
        "environment": compiled(
            partial(_step_environments, agent), runner, transitions.action, rng
        ),
        "policy": compiled(partial(_choose_actions, agent), runner, transitions, rng),
        "values": values,
        "advantages": advantages,
        # The body of a while_loop is counted once, that of a fori_loop as often as it runs.
        "actor": compiled(*actor)._replace(flops=agent.config.actor_epochs * count_flops(*actor)),
        "critic": compiled(*critic)._replace(flops=count_flops(*critic)),
        "shuffle": compiled(each_policy(partial(_shuffle, agent)), dealt, rngs),
    }


def programs_of_block(agent: IPPOBase, runner: Runner, metrics: Metrics) -> dict[str, Program]:
    """Compile what follows on a block of updates, as far as it is configured.

    Callbacks are not called, nor are checkpoints written: ``callbacks`` is what it takes to hand
    an evaluation to the host.

    Args:
        agent: The agent.
        runner: Where it stands.
        metrics: An update's.
    """
    programs = {}
    if agent.config.n_evals:
        rng = jax.random.key(agent.config.eval_seed)
        evaluate = partial(agent._player.evaluate, n_evals=agent.config.n_evals, greedy=True)
        programs["evaluation"] = compiled(evaluate, rng, agent.networks.actor_of(runner))
        metrics = metrics | programs["evaluation"]()
    if agent._recorder.has_work:
        failed = jnp.zeros((), bool)
        programs["callbacks"] = compiled(agent._report, runner, metrics, failed)
    return programs


def _step_environments(
    agent: IPPOBase, runner: Runner, actions: Array, rng: PRNGKeyArray
) -> tuple[PyTree, TimeStep]:
    """Act as a rollout did, ``[time, envs, actors, ...]``."""

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
    """See what a rollout saw, step by step, and choose its actions again."""

    def act(memory: PyTree, now: tuple[Observation, Array, Array]) -> tuple[PyTree, Any]:
        observation, over, noise = now
        head, memory = agent.networks.heads(agent.networks.actor_of(runner), observation, memory)
        action = agent.distribution.sample(head, noise)
        return agent.networks.actor.reset_memory(memory, over), (head, action)

    rng_noise, _ = jax.random.split(rng)
    noise = agent.networks.draw_noise(rng_noise, *transitions.active.shape)
    seen = (transitions.observation, transitions.episode_over, noise)
    memory, (heads, actions) = jax.lax.scan(act, runner.memory.actor, seen)
    return memory, actions, agent.distribution.log_prob(heads, actions)


def _estimate(
    agent: IPPOBase,
    runner: Runner,
    transitions: Transition,
    valuation: Valuation,
    hyperparams: HyperParameters,
) -> tuple[Batch, PyTree]:
    """Make the policies' batches, and what their critics should learn."""
    runner, batch = agent._estimate_advantages(runner, transitions, valuation, hyperparams)
    runner, batch, metrics = agent._make_targets(runner, runner.actor, batch, hyperparams)
    return batch, (runner.normalizers, metrics)


class _Dealt(NamedTuple):
    """What the losses of one policy read of its batch, ``[time, sequences, actors, ...]``."""

    by_actor: list[Array]
    by_critic: list[Array]


def _read_by_losses(
    agent: IPPOBase, runner: Runner, batch: Batch, hyperparams: HyperParameters
) -> _Dealt:
    """Find what of the batches is worth gathering: a compiled update gathers nothing else."""
    actor, critic, one_policy_s, hyperparams = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
        (runner.actor.params, runner.critic.params, batch, hyperparams),
    )

    def read(loss: Callable[..., PyTree], unit: str, params: PyTree) -> list[Array]:
        indices = jnp.zeros(1, jnp.int32)
        minibatch = jax.eval_shape(partial(take_minibatch, unit=unit), one_policy_s, indices)
        _, is_read, _ = inputs_read(loss, params, minibatch, hyperparams)
        leaves = zip(jax.tree.leaves(batch), jax.tree.leaves(is_read), strict=True)
        return [leaf for leaf, is_read in leaves if is_read]

    return _Dealt(
        by_actor=read(agent._actor_loss, _unit_of_actor(agent), actor),
        by_critic=read(agent._critic_loss, _unit_of_critic(agent), critic),
    )


def _shuffle(agent: IPPOBase, dealt: _Dealt, rng: PRNGKeyArray) -> _Dealt:
    """Draw and gather the minibatches of all epochs of one policy; return the last ones."""
    config = agent.config
    return _Dealt(
        by_actor=_deal(agent, dealt.by_actor, rng, _unit_of_actor(agent), config.actor_epochs),
        by_critic=_deal(agent, dealt.by_critic, rng, _unit_of_critic(agent), config.critic_epochs),
    )


def _unit_of_actor(agent: IPPOBase) -> str:
    return unit_of(agent.config, agent.networks.actor.recurrent)


def _unit_of_critic(agent: IPPOBase) -> str:
    return unit_of(agent.config, agent.networks.critic.recurrent)


def _deal(
    agent: IPPOBase, batch: list[Array], rng: PRNGKeyArray, unit: str, n_epochs: int
) -> list[Array]:
    config = agent.config
    shape = (config.chunk_length, config.batch_size * config.n_chunks, config.n_minibatches)

    def gather(_: list[Array], indices: Array) -> tuple[list[Array], None]:
        return take_minibatch(batch, indices, unit), None

    def pass_once(minibatch: list[Array], rng: PRNGKeyArray) -> tuple[list[Array], None]:
        indices = draw_minibatches(rng, *shape, unit)
        return jax.lax.scan(gather, minibatch, indices)

    shapes = jax.eval_shape(
        lambda: take_minibatch(batch, draw_minibatches(rng, *shape, unit)[0], unit)
    )
    nothing = [jnp.zeros(each.shape, each.dtype) for each in shapes]
    return jax.lax.scan(pass_once, nothing, jax.random.split(rng, n_epochs))[0]
