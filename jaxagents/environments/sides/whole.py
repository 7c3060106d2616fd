"""All actors of a batch of environments, for the sides that share it."""

import contextlib
from collections.abc import Sequence
from typing import final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxagents.environments.batch import BatchState, EnvironmentBatch
from jaxagents.types import Observation, PyTree, TimeStep


@final
class WholeBatch(EnvironmentBatch):
    """Environments whose observations hold the steps since the reset and of each actor's life.

    Each side and each opponent prepares them for its own networks.
    """

    def __init__(self, environments: EnvironmentBatch, global_state: bool):
        super().__init__(
            environments.observation,
            environments.space,
            environments.teams,
            environments.time_limit,
            agent_id=False,
            global_state=global_state,
        )
        self._environments = environments
        self.success = environments.success
        self.entity_kinds = environments.entity_kinds
        self.rewards_after_death = environments.rewards_after_death
        self.has_shaped_reward = environments.has_shaped_reward
        self.returns_tuples = environments.returns_tuples
        self.has_hidden_infos = environments.has_hidden_infos
        self.can_be_vmapped = environments.can_be_vmapped

    def reset(self, rng: PRNGKeyArray, n_envs: int) -> tuple[Observation, BatchState]:
        """Start an episode in each of ``n_envs`` environments."""
        observation, state = self._environments.reset(rng, n_envs)
        state = state._replace(age=jnp.zeros(state.active.shape, jnp.int32))
        return observation._replace(elapsed=state.episode_steps, age=state.age), state

    def step(
        self, rng: PRNGKeyArray, state: BatchState, action: Array
    ) -> tuple[TimeStep, BatchState]:
        """Step each environment, ``[envs, actors, ...]``, and reset where the episode is over."""
        step, following = self._environments.step(rng, state, action)
        step = step._replace(
            observation=step.observation._replace(
                elapsed=following.episode_steps, age=following.age
            ),
            final_observation=step.final_observation._replace(
                elapsed=state.episode_steps + 1,
                age=None if state.age is None else state.age + 1,
            ),
        )
        return step, following

    def for_evaluation(self) -> "WholeBatch":
        """Return a batch for evaluations, whose episodes do not disturb this one's."""
        return WholeBatch(self._environments.for_evaluation(), self._global_state)

    def for_recording(self, n_episodes: int) -> "WholeBatch":
        """Return a batch that shows the states of its first environments."""
        shown = self._environments.for_recording(n_episodes)
        return self if shown is self._environments else WholeBatch(shown, self._global_state)

    def environment_states(self, state: BatchState) -> PyTree:
        """Return the environments' own states."""
        return self._environments.environment_states(state)

    def infos_of_episodes(
        self, actors: Sequence[int] | None = None, is_divided: bool = False
    ) -> dict[str, np.ndarray]:
        """Return infos of the first episodes since a reset."""
        return self._environments.infos_of_episodes(actors, is_divided)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self._environments.close()

    def can_continue(self, state: BatchState) -> bool:
        """Return True if `step` can continue from a state."""
        return self._environments.can_continue(state)

    def keep_own_ends(self) -> None:
        """Return each actor's own end, also where dead actors earn rewards."""
        super().keep_own_ends()
        self._environments.keep_own_ends()

    def raising_faults(self) -> contextlib.AbstractContextManager[None]:
        """Enter a context that raises the environments' own errors."""
        return self._environments.raising_faults()
