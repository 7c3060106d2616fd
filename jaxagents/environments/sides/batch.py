"""A batch of environments in which an agent plays one side."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.environments.sides.games import results_of_games, success_of_side
from jaxagents.environments.sides.opponents import (
    Opponent,
    Pool,
    Seats,
    as_actions,
    draw_members,
    new_pool,
    of_actors,
    unique,
    win_rate,
    with_past_self,
    with_places,
    with_results,
)
from jaxagents.environments.sides.side import Side
from jaxagents.environments.sides.whole import WholeBatch
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import Observation, PyTree, TimeStep


class SideState(NamedTuple):
    """State of a batch of environments with opponents."""

    whole: BatchState  # of the environments with all actors
    observation: Observation  # of all actors, [envs, actors, ...]
    member: Int[Array, " envs"]  # index in the pool of the opponent in the running episode
    memory: tuple[PyTree, ...]  # each opponent's recurrent state, [envs, ...]
    returns: Float[Array, "envs sides"]  # of the episode so far, means over actors; learner first
    pool: Pool


@final
class SideBatch(EnvironmentBatch):
    """The side's actors of a batch of environments; members of a pool play the others.

    Steps have additional infos: ``opponent``, the member's place in the pool; and, of the episode
    so far, ``beat_opponent``, which is 1 if the learner's return exceeds the opponent's, and 1/2 if
    they are equal, and `results_of_games`.

    Args:
        side: The side.
        whole: The environments with all actors.
        time_limit: As for `EnvironmentBatch`.
        agent_id: As for `EnvironmentBatch`.
        global_state: As for `EnvironmentBatch`.
        is_for_evaluation: The named opponents play, equally often, without past selves.
    """

    def __init__(
        self,
        side: Side,
        whole: WholeBatch,
        time_limit: TimeLimit,
        agent_id: bool = False,
        global_state: bool = False,
        is_for_evaluation: bool = False,
    ):
        self.side, self.whole = side, whole
        self._settings = (time_limit, agent_id, global_state)
        self._seats = Seats(side.others, whole.n_actors, whole.space)
        for opponent in side.opponents or ():
            opponent.check(self._seats)
        self._is_for_evaluation = is_for_evaluation
        self._past_selves = None if is_for_evaluation else side.past_selves
        self._learner: Opponent | None = None
        self.success = success_of_side(side, whole.success)
        self.entity_kinds = whole.entity_kinds
        self.rewards_after_death = whole.rewards_after_death
        self.has_shaped_reward = whole.has_shaped_reward
        self.returns_tuples = whole.returns_tuples
        self.has_hidden_infos = whole.has_hidden_infos
        self.can_be_vmapped = whole.can_be_vmapped
        sliced = jax.eval_shape(self._of_learner, _batched(whole.observation))
        observation = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), sliced)
        super().__init__(observation, whole.space, side.teams, time_limit, agent_id, global_state)

    @property
    def has_rivals(self) -> bool:
        """True: a side's returns depend on its opponents."""
        return True

    def for_evaluation(self) -> "SideBatch":
        """Return a batch whose opponents are only those that the side names."""
        return self._evaluating(self.whole.for_evaluation())

    def for_recording(self, n_episodes: int) -> "SideBatch":
        """Return a batch that shows the states of its first environments, for evaluations."""
        shown = self.whole.for_recording(n_episodes)
        return self if shown is self.whole else self._evaluating(shown)

    def infos_of_episodes(
        self, actors: Sequence[int] | None = None, is_divided: bool = False
    ) -> dict[str, np.ndarray]:
        """Return infos of the side's own actors; see `EnvironmentBatch`."""
        return self.whole.infos_of_episodes(self._actors if actors is None else actors, is_divided)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self.whole.close()

    def _evaluating(self, whole: WholeBatch) -> "SideBatch":
        return SideBatch(self.side, whole, *self._settings, is_for_evaluation=True)

    def can_continue(self, state: BatchState) -> bool:
        """Return True if `step` can continue from a state."""
        return self.whole.can_continue(state.env_state.whole)

    def keep_own_ends(self) -> None:
        """Return each actor's own end, also where dead actors earn rewards."""
        super().keep_own_ends()
        self.whole.keep_own_ends()

    def raising_faults(self) -> Any:
        """Enter a context that raises the environments' own errors."""
        return self.whole.raising_faults()

    def bind_learner(self, learner: Opponent) -> None:
        """Receive the learner as an `Opponent`, so that past selves can play."""
        if self._past_selves is not None:
            learner.check(self._seats)
            self._learner = learner

    def after_update(self, state: BatchState, learner: PyTree, n_updates_done: Array) -> BatchState:
        """Add the learner to the pool, if an addition is due."""
        if self._past_selves is None:
            return state
        pool: Pool = state.env_state.pool
        if len(pool.exists) == self._n_fixed:  # before training
            pool = with_places(pool, learner, self._past_selves.n_members)
        pool = with_past_self(pool, learner, self._n_fixed, self._past_selves.every, n_updates_done)
        return state._replace(env_state=state.env_state._replace(pool=pool))

    def environment_states(self, state: BatchState) -> PyTree:
        """Return the environments' own states, without opponents."""
        return self.whole.environment_states(state.env_state.whole)

    def begin_anew(self, state: BatchState, earlier: BatchState) -> BatchState:
        """Keep the pool of an earlier state."""
        pool = earlier.env_state.pool
        return state._replace(env_state=state.env_state._replace(pool=pool))

    def standings(self, state: BatchState) -> dict[str, float]:
        """Return the learner's recent rate of wins against each member of the pool, by name."""
        pool: Pool = state.env_state.pool
        selves = [f"past self {i}" for i in range(len(pool.exists) - self._n_fixed)]
        names = unique([name for opponent in self._fixed for name in opponent.names] + selves)
        rates, exists = np.asarray(win_rate(pool)), np.asarray(pool.exists)
        return {name: float(rates[i]) for i, name in enumerate(names) if exists[i]}

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""
        rng, rng_member = jax.random.split(rng)
        observation, whole = self.whole.reset(rng, n_envs)
        params = tuple(opponent.params() for opponent in self._fixed)
        pool = new_pool(params, self._n_fixed)
        state = SideState(
            whole=whole,
            observation=observation,
            member=self._first_members(rng_member, pool, n_envs),
            memory=self._initial_memory(n_envs),
            returns=jnp.zeros((n_envs, 2)),
            pool=pool,
        )
        return self.seen_by_side(observation), self._as_batch_state(state)

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""
        side: SideState = state.env_state
        rng, rng_opponent, rng_member = jax.random.split(rng, 3)
        others, memory = self._act(rng_opponent, side)
        step, whole = self.whole.step(rng, side.whole, self._merged(action, others))
        over, n_envs = step.episode_over, len(step.episode_over)
        rewards = [step.reward[:, np.asarray(each)] for each in (self._actors, self._seats.actors)]
        returns = side.returns + jnp.stack([each.mean(axis=1) for each in rewards], axis=1)
        margin = returns[:, 0] - returns[:, 1]
        pool = with_results(side.pool, side.member, over, margin)
        drawn = draw_members(rng_member, pool, n_envs, self.side.prioritized)
        following = side._replace(
            member=jnp.where(over, drawn, side.member),
            memory=_where(over, self._initial_memory(n_envs), self._begin_lives(memory, step)),
            returns=jnp.where(over[:, None], 0.0, returns),
            pool=pool,
        )
        infos = {
            "opponent": side.member.astype(jnp.float32),
            "beat_opponent": (1 + jnp.sign(margin)) / 2,
            **results_of_games(margin),
        }
        step = step._replace(info={**step.info, **infos})
        return self.view(self._as_batch_state(following), step, whole)

    def view(
        self, state: BatchState, step: TimeStep, whole: BatchState
    ) -> tuple[TimeStep, BatchState]:
        """Return the side's part of a step of the whole environments.

        Args:
            state: State of the side before the step.
            step: The step of all actors.
            whole: The state of the environments after it.
        """
        observation = self._own(step.observation)
        side = state.env_state._replace(whole=whole, observation=observation)
        learners, shaped = np.asarray(self._actors), step.shaped_reward
        time_step = step._replace(
            observation=self.seen_by_side(observation),
            final_observation=self.seen_by_side(step.final_observation),
            reward=step.reward[:, learners],
            shaped_reward=None if shaped is None else shaped[:, learners],
            terminated=step.terminated[:, learners],
            truncated=step.truncated[:, learners],
            active=step.active[:, learners],
            begins=step.begins[:, learners],
            info={
                name: value[:, learners] if value.ndim == 2 else value
                for name, value in step.info.items()
            },
        )
        return time_step, self._as_batch_state(side)

    def seat(self, state: BatchState, other: BatchState) -> tuple[Observation, BatchState]:
        """Join the environments of another side; return its own observations and the state."""
        theirs: SideState = other.env_state
        observation = self._own(theirs.observation)
        side = state.env_state._replace(whole=theirs.whole, observation=observation)
        return self.seen_by_side(observation), self._as_batch_state(side)

    @property
    def _actors(self) -> tuple[int, ...]:
        return self.side.actors

    @property
    def _fixed(self) -> tuple[Opponent, ...]:
        return self.side.opponents or ()

    @property
    def _n_fixed(self) -> int:
        return sum(len(opponent.names) for opponent in self._fixed)

    @property
    def _opponents(self) -> tuple[Opponent, ...]:
        return self._fixed if self._learner is None else (*self._fixed, self._learner)

    def _first_members(self, rng: PRNGKeyArray, pool: Pool, n_envs: int) -> Int[Array, " envs"]:
        if self._is_for_evaluation:
            return jnp.arange(n_envs) % max(1, self._n_fixed)
        return draw_members(rng, pool, n_envs, prioritized=False)

    def _initial_memory(self, n_envs: int) -> tuple[PyTree, ...]:
        return tuple(each.initial_memory(self._seats, n_envs) for each in self._opponents)

    def _begin_lives(self, memory: tuple[PyTree, ...], step: TimeStep) -> tuple[PyTree, ...]:
        return tuple(
            opponent.begin_lives(self._seats, each, step.begins)
            for opponent, each in zip(self._opponents, memory, strict=False)
        )

    def _act(self, rng: PRNGKeyArray, side: SideState) -> tuple[Array, tuple[PyTree, ...]]:
        """Let every opponent act in all environments, and select those that play."""
        if not self._fixed:
            raise ValueError(
                f"nobody plays the actors {list(self.side.others)}: give the Side opponents, or "
                "train the agents of all sides by train_together."
            )
        actions, memories, first = [], [], 0
        places = [len(opponent.names) for opponent in self._fixed]
        places.append(len(side.pool.exists) - self._n_fixed)
        for opponent, n_places, params, memory in zip(
            self._opponents, places, side.pool.params, side.memory, strict=False
        ):
            rng, rng_act = jax.random.split(rng)
            member = jnp.clip(side.member - first, 0, n_places - 1)
            action, memory = opponent.act(
                self._seats, params, member, rng_act, side.observation, memory
            )
            actions.append((side.member >= first, action))
            memories.append(memory)
            first += n_places
        (_, chosen), *later = actions
        for plays, action in later:
            chosen = _where(plays, action, chosen)
        return chosen, tuple(memories)

    def _merged(self, learners: Array, others: Array) -> Array:
        order = np.argsort([*self._actors, *self._seats.actors])
        return jnp.concatenate([learners, as_actions(others, self.space)], axis=1)[:, order]

    def _own(self, observation: Observation) -> Observation:
        """Drop a global state that only other sides use."""
        if self.whole.observation.global_state is None:
            return observation._replace(global_state=None)
        return observation

    def _of_learner(self, observation: Observation) -> Observation:
        return of_actors(observation, self._actors)

    def seen_by_side(self, observation: Observation) -> Observation:
        """Return the learner's part of all actors' observation."""
        observation = self._of_learner(observation)
        return self._prepare(observation, observation.elapsed, observation.age)

    def _as_batch_state(self, side: SideState) -> BatchState:
        active = side.whole.active[:, np.asarray(self._actors)]
        return BatchState(side, active, side.whole.episode_steps)


def _batched(observation: Observation) -> Observation:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), observation)


def _where(condition: Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Choose by environment, ``[envs, ...]``."""

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (b.ndim - 1)), a, b)

    return jax.tree.map(choose, chosen, other)
