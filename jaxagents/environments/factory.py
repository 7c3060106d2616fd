"""The batch that plays an environment, by the environment's type."""

from typing import Any

from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.host.batch import HostEnvironmentBatch
from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.jax_batch import JaxEnvironmentBatch
from jaxagents.environments.sides.batch import SideBatch
from jaxagents.environments.sides.side import Side
from jaxagents.environments.sides.whole import WholeBatch
from jaxagents.environments.time_limits import TimeLimit
from jaxagents.types import PyTree


def batch_of(
    env: Any,
    env_params: PyTree,
    *,
    max_episode_steps: int | None,
    time_limit: TimeLimit,
    agent_id: bool = False,
    global_state: bool = False,
) -> EnvironmentBatch:
    """Return the batch for an environment of JAX or of the host, or for a side of one.

    Args:
        env: The environment, or a `Side`.
        env_params: Its parameters; host environments have none.
        max_episode_steps: Truncate episodes at this length.
        time_limit: As for `EnvironmentBatch`.
        agent_id: As for `EnvironmentBatch`.
        global_state: As for `EnvironmentBatch`.

    Raises:
        TypeError: the environment does not follow the protocol.
    """
    if isinstance(env, Side):
        whole = batch_of(
            env.env,
            env_params,
            max_episode_steps=max_episode_steps,
            time_limit=time_limit._replace(is_observed=False),
            global_state=global_state,
        )
        whole = WholeBatch(whole, global_state)
        return SideBatch(env, whole, time_limit, agent_id, global_state)
    if isinstance(env, HostEnvironment):
        return HostEnvironmentBatch(env, max_episode_steps, time_limit, agent_id, global_state)
    return JaxEnvironmentBatch(
        env, env_params, max_episode_steps, time_limit, agent_id, global_state
    )


def warn_of_endless_episodes(env: Any) -> None:
    """Warn if episodes of a host environment without a known time limit may never end.

    Args:
        env: The environment, or a `Side`.
    """
    env = env.env if isinstance(env, Side) else env
    if isinstance(env, HostEnvironment):
        env.warn_of_endless_episodes()
