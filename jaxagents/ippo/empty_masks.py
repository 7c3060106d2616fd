"""Action masks that leave a living actor no action: an error of the environment, counted here."""

import jax.numpy as jnp
import numpy as np

from jaxagents.compiler.devices import sum_over_devices
from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.types import Metrics, Transition


def count_empty_masks(step: Transition, space: ActionSpace, policies: PolicyMap) -> Metrics:
    """Count each policy's samples of living actors with a choice that has no available action.

    Such a choice is made as if there were no mask. Masks of a `Box` mark dimensions and may be
    empty.

    Args:
        step: ``[time, envs, actors, ...]``.
        space: One actor's action space.
        policies: Which policy each actor has.

    Returns:
        ``empty_masks``, ``[policies]``; an empty mapping without action masks.
    """
    mask = step.observation.action_mask
    if mask is None or isinstance(space, Box):
        return {}
    of_choices = jnp.split(mask, np.cumsum(space.n_choices)[:-1], axis=-1)
    is_empty = ~jnp.all(jnp.stack([each.any(axis=-1) for each in of_choices]), axis=0)
    of_actors = sum_over_devices(jnp.sum(step.active & is_empty, axis=(0, 1)))
    of_members = policies.to_policies(of_actors.astype(jnp.float32), axis=0)
    return {"empty_masks": jnp.sum(of_members * policies.membership(), axis=1)}
