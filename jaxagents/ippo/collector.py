"""Collecting rollouts: acting in all environments, step by step."""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray

from jaxagents.compiler.devices import part_of_device, sum_over_devices
from jaxagents.compiler.tuned_forms import scan_over_time
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.distributions import DistParams, Distribution
from jaxagents.ippo.frozen import Frozen
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.ppo.schedules import training_reward
from jaxagents.types import (
    Metrics,
    NetworkParams,
    Observation,
    PyTree,
    Runner,
    TimeStep,
    Transition,
    to_be_valued,
)


class RolloutLoop(NamedTuple):
    """Carry of the scan over environment steps."""

    env_state: PyTree  # [envs, ...]
    observation: Observation  # [envs, actors, ...]
    memory: PyTree  # the actors' recurrent state, [envs, actors, ...]


class Choice(NamedTuple):
    """The actors' choice in one step, ``[envs, actors, ...]``."""

    action: Array  # as sampled: unclipped, before any squashing
    dist_params: DistParams  # of the distributions that it was sampled from
    memory: PyTree  # the recurrent state after the choice


class RecordedStep(NamedTuple):
    """A transition whose log probability is computed later, for the whole rollout at once."""

    transition: Transition  # with log_prob=None
    dist_params: DistParams


@final
class Collector(Frozen):
    """Collects the rollouts of an agent.

    `train_together` repeats the loop of `collect` for several agents in the same environments.
    """

    def __init__(
        self,
        config: AgentConfig,
        environments: EnvironmentBatch,
        networks: ActorCritic,
        distribution: Distribution,
    ):
        self._config = config
        self._environments = environments
        self._networks = networks
        self._distribution = distribution
        self._freeze()

    def collect(self, runner: Runner, rng: PRNGKeyArray) -> tuple[Runner, Transition]:
        """Act for ``rollout_length`` steps; transitions are ``[time, envs, actors, ...]``.

        Networks normalise observations with the statistics from before this update.
        """
        actor = self._networks.actor_of(runner)

        def act(loop: RolloutLoop, now: tuple[PRNGKeyArray, Array]) -> Any:
            rng, noise = now
            choice = self.choose(actor, loop.observation, loop.memory, noise)
            action = self._distribution.to_environment(choice.action)
            step, env_state = self._environments.step(rng, loop.env_state, action)
            return self.record(loop, choice, step, env_state, runner.n_updates_done)

        loop, steps = scan_over_time(act, loop_of(runner), self.draw(rng), n_at_once=4)
        return after_rollout(runner, loop), self.with_log_probs(steps)

    def draw(self, rng: PRNGKeyArray) -> tuple[Key[Array, " time"], Array]:
        """Draw the environments' keys and the noise of actions ``[time, envs, actors, ...]``.

        Every device draws the noise of all environments, so it does not depend on their division.
        """
        rng_noise, rng_env = jax.random.split(rng)
        n_steps = self._config.rollout_length
        shape = (n_steps, self._config.batch_size, self._environments.n_actors)
        noise = part_of_device(self._networks.draw_noise(rng_noise, *shape), axis=1)
        return jax.random.split(rng_env, n_steps), noise

    def choose(
        self, actor: NetworkParams, observation: Observation, memory: PyTree, noise: Array
    ) -> Choice:
        """Choose the actions of one step."""
        dist_params, memory = self._networks.dist_params(actor, observation, memory)
        action = self._distribution.sample(dist_params, noise)
        return Choice(action, dist_params, memory)

    def record(
        self,
        loop: RolloutLoop,
        choice: Choice,
        step: TimeStep,
        env_state: PyTree,
        n_updates_done: Int[Array, ""],
    ) -> tuple[RolloutLoop, RecordedStep]:
        """Return the carry of the next step, and the transition of this one.

        Args:
            loop: The carry of this step.
            choice: The actions.
            step: The environments' answer.
            env_state: The environments' state after the step.
            n_updates_done: Anneals the shaped reward.
        """
        limit = self._environments.time_limit
        terminated, truncated = limit.for_learning(step.terminated, step.truncated)
        transition = Transition(
            observation=loop.observation,
            memory=loop.memory,
            action=choice.action,
            log_prob=None,
            reward=training_reward(step.reward, step.shaped_reward, self._config, n_updates_done),
            terminated=terminated,
            truncated=truncated,
            active=step.active,
            begins=step.begins,
            # A terminal limit ends the return: nothing bootstraps.
            final_observation=None if limit.is_terminal else to_be_valued(step.final_observation),
        )
        memory = self._networks.actor.reset_memory(choice.memory, step.begins)
        loop = RolloutLoop(env_state, step.observation, memory)
        return loop, RecordedStep(transition, choice.dist_params)

    def with_log_probs(self, steps: RecordedStep) -> Transition:
        """Return the transitions of steps ``[time, envs, actors, ...]``."""
        log_prob = self._distribution.log_prob(steps.dist_params, steps.transition.action)
        return steps.transition._replace(log_prob=log_prob)


def loop_of(runner: Runner) -> RolloutLoop:
    """Return the carry of a rollout's first step."""
    return RolloutLoop(runner.env_state, runner.observation, runner.memory.actor)


def after_rollout(runner: Runner, loop: RolloutLoop) -> Runner:
    """Return the runner after a rollout, except for its critics' recurrent state."""
    memory = runner.memory._replace(actor=loop.memory)
    return runner.replace(env_state=loop.env_state, observation=loop.observation, memory=memory)


def count_empty_masks(step: Transition, space: ActionSpace, policies: PolicyMap) -> Metrics:
    """Count each policy's samples of acting actors with a choice that has no available action.

    That is an error of the environment. Such a choice is the first action, and no policy learns
    from it. Masks of a `Box` mark dimensions and may be empty.

    Args:
        step: ``[time, envs, actors, ...]``.
        space: One actor's action space.
        policies: Which policy each actor has.

    Returns:
        ``empty_masks``, ``[policies]``; an empty mapping if there are no action masks.
    """
    mask = step.observation.action_mask
    if mask is None or isinstance(space, Box):
        return {}
    of_choices = jnp.split(mask, np.cumsum(space.n_choices)[:-1], axis=-1)
    is_empty = ~jnp.all(jnp.stack([each.any(axis=-1) for each in of_choices]), axis=0)
    has_turn = step.observation.has_turn
    acts = step.active if has_turn is None else step.active & has_turn
    of_actors = sum_over_devices(jnp.sum(acts & is_empty, axis=(0, 1)))
    of_members = policies.to_policies(of_actors.astype(jnp.float32), axis=0)
    return {"empty_masks": jnp.sum(of_members * policies.membership(), axis=1)}
