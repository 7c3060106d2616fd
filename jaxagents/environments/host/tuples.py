"""Gymnasium's environments of several agents, whose spaces are Tuples. Numpy only."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxagents.environments.host import WrongValueError

_MASK = "action_mask"


def is_of_agents(env: Any) -> bool:
    """Return True if both spaces are Tuples of the same length: an entry per agent.

    Raises:
        TypeError: only the action space is a Tuple, or the observation space has another length.
    """
    from gymnasium.spaces import Tuple

    action_space = getattr(env, "action_space", None)  # a method of PettingZoo's environments
    if not isinstance(action_space, Tuple):
        return False
    observation_space = getattr(env, "observation_space", None)
    if isinstance(observation_space, Tuple) and len(observation_space) == len(action_space):
        return True
    raise TypeError(
        f"action space {' '.join(repr(action_space).split())} is one agent's: entries are agents "
        "only if the observation space is a Tuple of the same length. Wrap the environment in one "
        "that takes all choices as one vector."
    )


@final
class TupleAgents:
    """Such an environment with PettingZoo's parallel interface.

    Rewards, ends and infos come one per agent, or one for all; an ``action_mask`` in one info for
    all has an entry per agent. Agents that have ended repeat their last action.

    Args:
        env: The environment.
        name: Its name.
        max_episode_steps: Its time limit, or None if it is unknown.
    """

    def __init__(self, env: Any, name: str, max_episode_steps: int | None):
        self.env = env
        metadata = getattr(env, "metadata", None) or {}
        self.metadata = {**metadata, "name": name, "max_cycles": max_episode_steps}
        self.render_mode = getattr(env, "render_mode", None)
        self.possible_agents = [f"agent_{i}" for i in range(len(env.action_space))]
        self.agents: list[str] = []
        self._actions: dict[str, Any] = {}  # the last of each

    def observation_space(self, agent: str) -> Any:
        """Return an agent's observation space."""
        return self.env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Return an agent's action space."""
        return self.env.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._by_name("observation", observations), self._infos(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step; agents that have ended are listed no more."""
        self._actions |= actions
        observations, rewards, terminated, truncated, infos = self.env.step(
            tuple(self._actions[name] for name in self.possible_agents)
        )
        terminations = self._for_each("termination", terminated)
        truncations = self._for_each("truncation", truncated)
        self.agents = [
            name for name in self.possible_agents if not (terminations[name] or truncations[name])
        ]
        return (
            self._by_name("observation", observations),
            self._for_each("reward", rewards),
            terminations,
            truncations,
            self._infos(infos),
        )

    def render(self) -> Any:
        """Draw the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _infos(self, infos: Any) -> dict[str, Any]:
        if not isinstance(infos, Mapping):
            return self._by_name("info", infos)
        if infos.get(_MASK) is None:
            return dict.fromkeys(self.possible_agents, infos)
        masks = self._by_name("action mask", infos[_MASK])
        return {name: {**infos, _MASK: mask} for name, mask in masks.items()}

    def _for_each(self, what: str, values: Any) -> dict[str, Any]:
        """Return each agent's value; a single number is everyone's."""
        if isinstance(values, tuple | list) or np.ndim(values):
            return self._by_name(what, values)
        return dict.fromkeys(self.possible_agents, values)

    def _by_name(self, what: str, values: Any) -> dict[str, Any]:
        names = self.possible_agents
        if not isinstance(values, tuple | list | np.ndarray):
            raise WrongValueError(
                f"returned {type(values).__name__} as {what}s of {len(names)} agents, not one each"
            )
        if len(values) != len(names):
            raise WrongValueError(f"returned {len(values)} {what}s for {len(names)} agents")
        return dict(zip(names, values, strict=True))
