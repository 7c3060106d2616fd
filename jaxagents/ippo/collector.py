"""Collecting rollouts: acting in all environments, step by step."""

from typing import final

import jax
from jaxtyping import Array, Key, PRNGKeyArray

from jaxagents.compiler.devices import part_of_device
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.distributions import Distribution
from jaxagents.ippo.frozen import Frozen
from jaxagents.ppo.schedules import training_reward
from jaxagents.types import (
    Inference,
    Move,
    PyTree,
    RolloutLoop,
    Runner,
    TimeStep,
    Transition,
    to_be_valued,
)


@final
class Collector(Frozen):
    """Collects the rollouts of an agent.

    Agents that share their environments (`train_together`) repeat the loop of `collect` with the
    same methods.
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

        Networks normalise observations by the statistics from before this update.
        """
        actor = self._networks.actor_of(runner)

        def act(loop: RolloutLoop, now: tuple[PRNGKeyArray, Array]) -> tuple[RolloutLoop, Move]:
            rng, noise = now
            move, memory = self.choose(actor, loop, noise)
            action = self._distribution.to_environment(move.action)
            step, env_state = self._environments.step(rng, loop.env_state, action)
            return self.advance(move, memory, step, env_state)

        loop, moves = jax.lax.scan(act, self.begin(runner), self.draw(rng))
        return self.end(runner, loop, moves)

    def begin(self, runner: Runner) -> RolloutLoop:
        """Return the carry of a rollout's first step."""
        return RolloutLoop(runner.env_state, runner.observation, runner.memory.actor)

    def draw(self, rng: PRNGKeyArray) -> tuple[Key[Array, " time"], Array]:
        """Draw the environments' keys and the noise of actions ``[time, envs, actors, ...]``.

        An environment's noise does not depend on the devices: each draws that of all.
        """
        rng_noise, rng_env = jax.random.split(rng)
        n_steps = self._config.rollout_length
        shape = (n_steps, self._config.batch_size, self._environments.n_actors)
        noise = part_of_device(self._networks.draw_noise(rng_noise, *shape), axis=1)
        return jax.random.split(rng_env, n_steps), noise

    def choose(self, actor: Inference, loop: RolloutLoop, noise: Array) -> tuple[Move, PyTree]:
        """Choose the actions of a step; also return the actors' recurrent state after it."""
        head, memory = self._networks.heads(actor, loop.observation, loop.memory)
        action = self._distribution.sample(head, noise)
        return Move(loop.observation, loop.memory, head, action), memory

    def advance(
        self, move: Move, memory: PyTree, step: TimeStep, env_state: PyTree
    ) -> tuple[RolloutLoop, Move]:
        """Return the carry of the next step and the complete record of this one."""
        memory = self._networks.actor.reset_memory(memory, step.begins)
        loop = RolloutLoop(env_state, step.observation, memory)
        step = step._replace(info={}, final_state=None)
        if self._environments.time_limit.is_terminal:
            # Nothing bootstraps from it: truncation ends the return.
            step = step._replace(final_observation=None)
        return loop, move._replace(step=step)

    def end(self, runner: Runner, loop: RolloutLoop, moves: Move) -> tuple[Runner, Transition]:
        """Return the runner after a rollout, and the rollout's transitions."""
        step = moves.step
        terminated, truncated = self._environments.time_limit.for_learning(
            step.terminated, step.truncated
        )
        final = step.final_observation
        transitions = Transition(
            observation=moves.observation,
            memory=moves.memory,
            action=moves.action,
            log_prob=self._distribution.log_prob(moves.head, moves.action),
            reward=training_reward(
                step.reward, step.shaped_reward, self._config, runner.n_updates_done
            ),
            terminated=terminated,
            truncated=truncated,
            active=step.active,
            begins=step.begins,
            final_observation=None if final is None else to_be_valued(final),
        )
        runner = runner.replace(
            env_state=loop.env_state,
            observation=loop.observation,
            memory=runner.memory._replace(actor=loop.memory),
        )
        return runner, transitions
