"""Compiled programs that apply trained policies: whole episodes, single actions and values."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagents.compiler.jit import compiled, compiled_quickly, is_traced
from jaxagents.compiler.random_keys import to_draw
from jaxagents.compiler.waiting import reporting, wait_for
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.sides.opponents import random_actions
from jaxagents.environments.success import with_success
from jaxagents.evaluation.episodes import (
    Act,
    Episode,
    Play,
    begin_play,
    play_episodes,
    record_episodes,
    record_step,
    report_waiting,
)
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.frozen import Frozen
from jaxagents.ppo.normalization import RunningStatistics, denormalize
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.types import Memory, Metrics, NetworkParams, Observation, PyTree

Evaluated = TypeVar("Evaluated")


@final
class Player(Frozen):
    """Runs an agent's networks in its environments."""

    def __init__(self, environments: EnvironmentBatch, policies: PolicyMap, networks: ActorCritic):
        self._environments = environments
        self._policies = policies
        self._networks = networks
        self._recorders: dict[int, Player] = {}  # by the number of recorded episodes
        self._freeze()

    def record(
        self, rng: PRNGKeyArray, actor: NetworkParams, n_evals: int, greedy: bool, n_episodes: int
    ) -> list[Episode]:
        """Play as `evaluate` does, and keep the first episodes step by step."""
        player = self._recording(n_episodes)
        try:
            with reporting(partial(report_waiting, n_episodes)):
                start = player.begin_play(rng, actor, n_evals, greedy)
                wait_for(start)
                return record_episodes(
                    player._environments,
                    start,
                    lambda play: player.record_step(actor, play, n_episodes, greedy),
                    n_episodes,
                )
        finally:
            if player is not self:
                player._environments.close()

    def _recording(self, n_episodes: int) -> "Player":
        """Return a player whose recordings show the environments' states."""
        if n_episodes not in self._recorders:  # kept: each has programs of its own
            shown = self._environments.for_recording(n_episodes)
            is_same = shown is self._environments
            player = self if is_same else Player(shown, self._policies, self._networks)
            self._recorders[n_episodes] = player
        return self._recorders[n_episodes]

    def evaluate(
        self,
        rng: PRNGKeyArray,
        actor: NetworkParams,
        n_evals: int,
        greedy: bool,
        n_updates_done: Array | None = None,
    ) -> Metrics:
        """Play whole episodes; see the agent's `eval`.

        Args:
            rng: Random key.
            actor: The policies.
            n_evals: Number of episodes.
            greedy: Take the most probable actions.
            n_updates_done: In training: updates done so far, for a message after a minute.
        """
        if is_traced((rng, actor)):
            return self._evaluate(rng, actor, n_evals, greedy)
        play = partial(self._evaluate, rng, actor, n_evals, greedy)
        metrics = self.awaited(play, actor, n_evals, n_updates_done)
        return metrics | jax.tree.map(jnp.asarray, self.infos(metrics))

    def awaited(
        self,
        play: Callable[[], Evaluated],
        actor: PyTree,
        n_evals: int,
        n_updates_done: Array | None = None,
    ) -> Evaluated:
        """Run a compiled evaluation to its end; after a minute, log that it is still running.

        Args:
            play: Runs it.
            actor: The policies, which may still be trained.
            n_evals: Number of episodes.
            n_updates_done: In training: updates done so far.
        """
        wait_for(actor)
        report = partial(report_waiting, n_evals, n_updates_done)
        # A program that calls the host has ended when its call returns.
        with reporting(report) if self._environments.has_hidden_infos else nullcontext():
            results = play()
        wait_for(results, report)
        return results

    def infos(self, metrics: Metrics, is_divided: bool = False) -> dict[str, Any]:
        """Return the infos of episodes that stay on the host, as metrics."""
        if not self._environments.has_hidden_infos:
            return {}
        wait_for(metrics)
        infos = self._environments.infos_of_episodes(is_divided=is_divided)
        named = {f"info_{name}": values for name, values in infos.items()}
        named = with_success(named, self._environments.success)
        return {name: values for name, values in named.items() if name not in metrics}

    @compiled_quickly(static_argnames=("n_evals", "greedy"))
    def _evaluate(
        self, rng: PRNGKeyArray, actor: NetworkParams, n_evals: int, greedy: bool
    ) -> Metrics:
        episodes = play_episodes(
            self._environments,
            self._act_by(actor, greedy),
            self._initial_memory,
            to_draw(rng),
            n_evals,
            reset_memory=self._networks.actor.reset_memory,
        )
        return episodes.as_metrics(self._environments.success)

    def evaluate_random(self, rng: PRNGKeyArray, n_evals: int, max_steps: int | None) -> Metrics:
        """Play whole episodes with random actions; see the agent's `eval_random`."""
        with reporting(partial(report_waiting, n_evals)):
            metrics = self._evaluate_random(rng, n_evals, max_steps)
            wait_for(metrics)
        return metrics

    @compiled_quickly(static_argnames=("n_evals", "max_steps"), optimized=False)
    def _evaluate_random(self, rng: PRNGKeyArray, n_evals: int, max_steps: int | None) -> Metrics:
        space = self._environments.space

        def act(
            rng: PRNGKeyArray, observation: Observation, memory: PyTree
        ) -> tuple[Array, PyTree]:
            return random_actions(rng, space, observation), memory

        episodes = play_episodes(
            self._environments, act, lambda _: (), to_draw(rng), n_evals, max_steps
        )
        return episodes.as_metrics(self._environments.success)

    # Compiled like `evaluate`, to play the same episodes.
    @compiled_quickly(static_argnames=("n_evals", "greedy"))
    def begin_play(
        self, rng: PRNGKeyArray, actor: NetworkParams, n_evals: int, greedy: bool
    ) -> Play:
        """Reset the environments of an evaluation."""
        act = self._act_by(actor, greedy)
        return begin_play(self._environments, act, self._initial_memory, rng, n_evals)

    @compiled_quickly(static_argnames=("n_episodes", "greedy"))
    def record_step(
        self, actor: NetworkParams, play: Play, n_episodes: int, greedy: bool
    ) -> tuple[Play, Episode]:
        """Play one step of an evaluation; also return it, for its first episodes."""
        act, reset = self._act_by(actor, greedy), self._networks.actor.reset_memory
        return record_step(self._environments, act, play, n_episodes, reset)

    @compiled()
    def act(
        self,
        actor: NetworkParams,
        critic: NetworkParams,
        observation: Observation | Array,
        carry: Memory,
        rng: PRNGKeyArray | None,
    ) -> tuple[Array, Memory]:
        """Choose actions from one environment's observation; see the agent's `policy`."""
        observation = self._environments.prepare(observation)
        one_env, memory = jax.tree.map(lambda leaf: leaf[None], (observation, carry.actor))
        action, memory = self._networks.act(actor, one_env, memory, rng)
        critic_memory = carry.critic
        if self._networks.value.recurrent:
            _, critic_memory = self._networks.values_of_actors(critic, observation, critic_memory)
        return action[0], Memory(jax.tree.map(lambda leaf: leaf[0], memory), critic_memory)

    @compiled()
    def value(
        self,
        critic: NetworkParams,
        statistics: RunningStatistics | None,
        observation: Observation | Array,
        carry: Memory,
    ) -> Float[Array, " actors"]:
        """Value one environment's observation; see the agent's `value`."""
        observation = self._environments.prepare(observation)
        value, _ = self._networks.values_of_actors(critic, observation, carry.critic)
        if statistics is None:
            return value
        return self._policies.apply(denormalize, statistics, value, axis=0)

    @compiled_quickly()
    def view(
        self,
        actor: NetworkParams,
        critic: NetworkParams,
        statistics: RunningStatistics | None,
        observation: Observation,
        begins: Bool[Array, "time actors"],
    ) -> tuple[Float[Array, "time actors"], dict[str, Array]]:
        """Return an episode's values, and the other fields of its `EpisodeView` by name."""
        networks = self._networks

        def step(
            memory: Memory, observed: tuple[Observation, Bool[Array, " actors"]]
        ) -> tuple[Memory, tuple[Array, dict[str, Array]]]:
            observation, begins = observed
            of_actor = networks.actor.reset_memory(memory.actor, begins)
            of_critic = networks.value.reset_memory(memory.critic, begins)
            one_env, of_actor = jax.tree.map(lambda leaf: leaf[None], (observation, of_actor))
            shown, of_actor = networks.outlook(actor, one_env, of_actor)
            shown, of_actor = jax.tree.map(lambda leaf: leaf[0], (shown, of_actor))
            value, of_critic = networks.values_of_actors(critic, observation, of_critic)
            return Memory(of_actor, of_critic), (value, shown)

        start = networks.initial_memory(self._policies.n_actors)
        _, (value, shown) = jax.lax.scan(step, start, (observation, begins))
        if statistics is not None:
            value = self._policies.apply(denormalize, statistics, value, axis=1)
        return value, shown

    def _initial_memory(self, n_envs: int) -> PyTree:
        return self._networks.actor.empty_memory(n_envs, self._policies.n_actors)

    def _act_by(self, actor: NetworkParams, greedy: bool) -> Act:
        def act(
            rng: PRNGKeyArray, observation: Observation, memory: PyTree
        ) -> tuple[Array, PyTree]:
            return self._networks.act(actor, observation, memory, None if greedy else rng)

        return act
