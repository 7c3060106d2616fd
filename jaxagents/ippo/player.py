"""What an agent does once it is trained: act, value, play whole episodes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxagents.compilation import quick_to_compile
from jaxagents.config import AgentConfig
from jaxagents.evaluation import Act, Play, begin_play, play_episodes
from jaxagents.ippo.actor_critic import ActorCritic, actor_of
from jaxagents.leaves import Leaves
from jaxagents.normalization import RunningStatistics, denormalize
from jaxagents.statistics import summarize
from jaxagents.tracing import as_key
from jaxagents.trajectories import RecordedStep, Trajectory, record_episodes, record_step
from jaxagents.types import Inference, Memory, MetricStats, Observation, Runner
from jaxagents.unrolling import unrolled

Metrics = dict[str, Array]


class Player(ActorCritic):
    """An agent's public methods that apply what was trained.

    Each is Python that checks and waits, around one compiled method.
    """

    def __init__(self, env: Any, env_params: PyTree, config: AgentConfig):
        super().__init__(env, env_params, config)
        self._collected: tuple[Runner, Metrics | Leaves] | None = None

    def eval(
        self,
        rng: PRNGKeyArray,
        n_evals: int | None = None,
        greedy: bool = True,
        runner: Runner | None = None,
    ) -> Metrics:
        """Play whole episodes with the trained policies.

        Args:
            rng: Random key.
            n_evals: Number of episodes; None: the configuration's.
            greedy: Take the likeliest actions instead of sampling.
            runner: Whose policies; None: the collected training's.

        Returns:
            ``returns`` (undiscounted sums of the environment's rewards), ``final_rewards``,
            ``terminated`` and ``truncated`` ``[n_evals, n_actors]``; ``episode_lengths`` and the
            last step's scalar infos, as ``info_<name>``, ``[n_evals]``.
        """
        n_evals = self.config.n_evals if n_evals is None else n_evals
        if n_evals < 1:
            raise ValueError(f"n_evals={n_evals} episodes; evaluate at least 1.")
        actor = actor_of(self._runner_or_collected(runner))
        return self._evaluate(as_key(rng), actor, n_evals, greedy)

    def record(
        self,
        rng: PRNGKeyArray,
        n_episodes: int = 1,
        n_evals: int | None = None,
        greedy: bool = True,
        runner: Runner | None = None,
    ) -> list[Trajectory]:
        """Play as `eval` does, and keep the first episodes step by step.

        Args:
            rng: Random key.
            n_episodes: Number of episodes to keep.
            n_evals: Number of episodes that are played: those kept are the first of the ones that
                `eval` plays with the same key and number. At least ``n_episodes`` are.
            greedy: As for `eval`.
            runner: Likewise.
        """
        if n_episodes < 1:
            raise ValueError(f"n_episodes={n_episodes}; record at least 1.")
        n_evals = max(n_episodes, self.config.n_evals if n_evals is None else n_evals)
        actor = actor_of(self._runner_or_collected(runner))
        return record_episodes(
            self._begin_play(as_key(rng), actor, n_evals, greedy),
            lambda play: self._record_step(actor, play, n_episodes, greedy),
            n_episodes,
        )

    def summarize(self, values: Any) -> MetricStats:
        """Describe a metric by its statistics over episodes; see `statistics.summarize`."""
        return summarize(values)

    def policy(
        self,
        runner: Runner | None,
        observation: Observation | Array,
        carry: Memory | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Any:
        """Choose every actor's action, as the environment takes it.

        Args:
            runner: Whose policies; None: the collected training's.
            observation: One environment's, ``[n_actors, *obs]``.
            carry: What a recurrent agent remembers: first `initial_carry`, then what this method
                returned; see also `reset_carry`.
            rng: Random key to sample with; None takes the likeliest actions.

        Returns:
            ``[n_actors]`` int32, or ``[n_actors, dimensions]`` float32; from a recurrent agent
            that and the carry for the next step.

        Raises:
            ValueError: the agent is recurrent and there is no carry, or the other way round.
        """
        runner = self._runner_or_collected(runner)
        carry = self._checked_carry(carry)
        rng = None if rng is None else as_key(rng)
        action, carry = self._policy(
            actor_of(runner), self._critic_of(runner), observation, carry, rng
        )
        return action if self.config.recurrent is None else (action, carry)

    def value(
        self,
        runner: Runner | None,
        observation: Observation | Array,
        carry: Memory | None = None,
    ) -> Float[Array, " actors"]:
        """Estimate every actor's discounted return from one environment's observation.

        Args:
            runner: As for `policy`.
            observation: As for `policy`.
            carry: The one with which `policy` is asked about this observation.
        """
        runner = self._runner_or_collected(runner)
        carry = self._checked_carry(carry)
        return self._value(self._critic_of(runner), runner.normalizers.value, observation, carry)

    def initial_carry(self) -> Memory:
        """Give what a recurrent agent's actors remember when an episode begins."""
        return self._empty_memory(self.policies.n_actors)

    def reset_carry(self, carry: Memory, mask: Bool[Array, " actors"]) -> Memory:
        """Let actors forget, where ``mask`` is True: because their episode begins."""
        mask = jnp.asarray(mask, bool)
        return Memory(
            actor=self.actor_network.emptied(carry.actor, mask),
            critic=self.critic.emptied(carry.critic, mask),
        )

    def collect_training(self, runner: Runner, metrics: Metrics | Leaves | None = None) -> None:
        """Keep a training's outcome for `eval`, `policy` and `value`."""
        self._collected = (runner, metrics or {})

    # Compiled parts of the public methods.

    @quick_to_compile(static_argnames=("self", "n_evals", "greedy"))
    def _evaluate(self, rng: PRNGKeyArray, actor: Inference, n_evals: int, greedy: bool) -> Metrics:
        memory = self.actor_network.empty_memory(n_evals, self.policies.n_actors)
        act = self._act_by(actor, greedy)
        return play_episodes(self.environments, act, memory, unrolled(rng), n_evals).as_metrics()

    # Compiled as `_evaluate` is, whose episodes these are.
    @quick_to_compile(static_argnames=("self", "n_evals", "greedy"))
    def _begin_play(self, rng: PRNGKeyArray, actor: Inference, n_evals: int, greedy: bool) -> Play:
        memory = self.actor_network.empty_memory(n_evals, self.policies.n_actors)
        return begin_play(self.environments, self._act_by(actor, greedy), memory, rng, n_evals)

    @quick_to_compile(static_argnames=("self", "n_episodes", "greedy"))
    def _record_step(
        self, actor: Inference, play: Play, n_episodes: int, greedy: bool
    ) -> tuple[Play, RecordedStep]:
        return record_step(self.environments, self._act_by(actor, greedy), play, n_episodes)

    def _act_by(self, actor: Inference, greedy: bool) -> Act:
        def act(
            rng: PRNGKeyArray, observation: Observation, memory: PyTree
        ) -> tuple[Array, PyTree]:
            return self._act(actor, observation, memory, None if greedy else rng)

        return act

    @partial(jax.jit, static_argnames="self")
    def _policy(
        self,
        actor: Inference,
        critic: Inference,
        observation: Observation | Array,
        carry: Memory,
        rng: PRNGKeyArray | None,
    ) -> tuple[Array, Memory]:
        observation = self.environments.prepare(observation)
        one_env, memory = jax.tree.map(lambda leaf: leaf[None], (observation, carry.actor))
        action, memory = self._act(actor, one_env, memory, rng)
        critic_memory = carry.critic
        if self.critic.recurrent:
            _, critic_memory = self._all_values(critic, observation, critic_memory)
        return action[0], Memory(jax.tree.map(lambda leaf: leaf[0], memory), critic_memory)

    @partial(jax.jit, static_argnames="self")
    def _value(
        self,
        critic: Inference,
        statistics: RunningStatistics | None,
        observation: Observation | Array,
        carry: Memory,
    ) -> Float[Array, " actors"]:
        observation = self.environments.prepare(observation)
        value, _ = self._all_values(critic, observation, carry.critic)
        if statistics is None:
            return value
        return self.policies.apply(denormalize, statistics, value, axis=0)

    def _all_values(
        self, critic: Inference, observation: Observation, memory: PyTree
    ) -> tuple[Float[Array, " actors"], PyTree]:
        features = self._critic_features(observation)
        return self.policies.apply(self._step_critic, critic, features, memory, axis=0)

    def _checked_carry(self, carry: Memory | None) -> Memory:
        if self.config.recurrent is None and carry is not None:
            raise ValueError(
                "a carry was given, but the agent is not recurrent; a random key is rng=..."
            )
        if self.config.recurrent is not None and carry is None:
            raise ValueError(
                f"an agent with recurrent={self.config.recurrent!r} needs a carry; begin with "
                "initial_carry(), and go on with the one that policy returns."
            )
        return Memory() if carry is None else carry

    def _runner_or_collected(self, runner: Runner | None) -> Runner:
        if runner is not None:
            return runner
        if self._collected is None:
            raise ValueError(
                "no training is collected; call collect_training(runner, metrics) or restore() "
                "first, or pass a runner."
            )
        return self._collected[0]
