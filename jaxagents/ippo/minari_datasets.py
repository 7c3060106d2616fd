"""Logged episodes of Minari's datasets as rollouts.

Source: Younis et al. 2024, https://minari.farama.org.
"""

from typing import Any

import jax
import numpy as np

from jaxagents.environments.host.actor_arrays import ActorArrays
from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.errors import import_extra
from jaxagents.ippo.agent import Agent
from jaxagents.ippo.rollout import Rollout
from jaxagents.types import Observation


def rollouts_from_minari(dataset: Any, agent: Agent) -> list[Rollout]:
    """Read a dataset of Minari as rollouts, for `pretrain`.

    Its episodes are joined end to end and cut into trajectories of ``rollout_length`` steps,
    ``batch_size`` of which form a rollout; the last rollout is padded with inactive steps. An
    episode that ends without termination or truncation was cut off there, and counts as truncated.
    The dataset's observations are encoded as those of `jaxagents.make` ("gymnasium/...").

    Args:
        dataset: A ``minari.MinariDataset``, or the name of one on this machine; nothing is
            downloaded.
        agent: The agent, of one actor, that learns from them.

    Returns:
        Rollouts without ``log_prob``, which datasets do not hold, and without recurrent states.

    Raises:
        ImportError: minari is not installed.
        TypeError: ``dataset`` is neither.
        FileNotFoundError: there is no dataset of this name on this machine.
        ValueError: the dataset's spaces are not those of the agent's environment, or it is empty.
    """
    minari = import_extra("minari", "Minari's datasets need", "minari")
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    if not isinstance(dataset, minari.MinariDataset):
        raise TypeError(f"{dataset!r} is no dataset; pass a minari.MinariDataset, or its name.")
    name = f"the dataset {dataset.spec.dataset_id}"
    arrays = ActorArrays(name, [dataset.observation_space], [dataset.action_space])
    _check_spaces(name, arrays, agent)
    first_action = np.asarray(getattr(dataset.action_space, "start", 0))
    observes_time = agent.environments.time_limit.is_observed
    episodes = [
        _steps_of(episode, arrays, first_action, observes_time)
        for episode in dataset.iterate_episodes()
        if len(episode) > 0
    ]
    if not episodes:
        raise ValueError(f"{name} holds no steps.")
    steps: Rollout = jax.tree.map(lambda *leaves: np.concatenate(leaves), *episodes)
    return _cut(steps, agent)


def _check_spaces(name: str, arrays: ActorArrays, agent: Agent) -> None:
    environments = agent.environments
    if environments.n_actors != 1:
        raise ValueError(
            f"{name} has one actor, and the agent's environment {environments.n_actors}; build "
            "Rollouts of several actors from arrays."
        )
    if not _is_same(arrays.space, environments.space):
        raise ValueError(
            f"{name} has actions in {arrays.space}, and the agent's environment in "
            f"{environments.space}."
        )
    expected = environments.own_observation.features.shape[1:]
    if tuple(arrays.shape) != expected:
        raise ValueError(
            f"{name} has observations of shape {tuple(arrays.shape)}, and the agent's environment "
            f"of {expected}."
        )


def _is_same(space: ActionSpace, other: ActionSpace) -> bool:
    if isinstance(space, Box) and isinstance(other, Box):
        bounds = ((space.low, other.low), (space.high, other.high))
        return space.shape == other.shape and all(np.allclose(*pair) for pair in bounds)
    return type(space) is type(other) and space == other


def _steps_of(
    episode: Any, arrays: ActorArrays, first_action: np.ndarray, observes_time: bool
) -> Rollout:
    """Convert an episode to the steps of one actor, ``[time, 1, ...]``.

    An episode has one more observation than actions. Actions are left as the environment took them.
    """
    n_steps = len(episode)
    seen = [
        {0: jax.tree.map(lambda leaf, step=step: leaf[step], episode.observations)}
        for step in range(n_steps + 1)
    ]
    features: Any = np.stack([arrays.features(each) for each in seen])
    mask: Any = None
    if arrays.needs_mask:
        acts = np.arange(n_steps + 1)[:, None] < n_steps
        mask = np.stack([arrays.masks(each, {}, now) for each, now in zip(seen, acts, strict=True)])
    elapsed: Any = np.arange(n_steps + 1, dtype=np.int32) if observes_time else None
    observations = Observation(features, mask, elapsed=elapsed)
    terminated = np.asarray(episode.terminations, bool)
    truncated = np.asarray(episode.truncations, bool) & ~terminated
    truncated[-1] |= not terminated[-1]
    return Rollout(
        observation=jax.tree.map(lambda leaf: leaf[:-1], observations),
        final_observation=jax.tree.map(lambda leaf: leaf[1:], observations),
        action=np.asarray(episode.actions)[:, None] - first_action,
        log_prob=None,
        reward=np.asarray(episode.rewards, np.float32)[:, None],
        terminated=terminated[:, None],
        truncated=truncated[:, None],
        last_observation=None,
    )


def _cut(steps: Rollout, agent: Agent) -> list[Rollout]:
    """Cut steps into rollouts, and pad the last one."""
    config, n_steps = agent.config, len(steps.reward)
    n_rollouts = -(-n_steps // config.steps_per_update)
    total = n_rollouts * config.steps_per_update

    def cut(filled: np.ndarray) -> np.ndarray:
        """Make ``[rollouts, time, envs, ...]``: each environment's steps follow each other."""
        shape = (n_rollouts, config.batch_size, config.rollout_length)
        return np.moveaxis(filled.reshape(*shape, *filled.shape[1:]), 1, 2)

    def lay(leaf: np.ndarray) -> np.ndarray:
        return cut(np.pad(leaf, [(0, total - n_steps), *[(0, 0)] * (leaf.ndim - 1)], mode="edge"))

    def lay_last_of_trajectories(observation: np.ndarray, final: np.ndarray) -> np.ndarray:
        return lay(np.concatenate([observation[1:], final[-1:]]))[:, -1]

    laid: Rollout = jax.tree.map(lay, steps)
    active = cut(np.arange(total)[:, None] < n_steps)
    stacked = laid._replace(
        action=np.asarray(agent.distribution.from_environment(laid.action)),
        terminated=laid.terminated & active,
        truncated=laid.truncated & active,
        last_observation=jax.tree.map(
            lay_last_of_trajectories, steps.observation, steps.final_observation
        ),
        active=active,
    )
    if agent.environments.time_limit.is_terminal:
        stacked = stacked._replace(final_observation=None)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n_rollouts)]
