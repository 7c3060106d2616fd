"""Environments that are not written in JAX: Gymnasium's, PettingZoo's and a user's own, in workers.

The registry and the agent, through the factory of batches, may import it; `worker` and all that it
imports run in processes without jax.
"""

from jaxagents.environments.host.errors import HostEnvironmentError

__all__ = ["HostEnvironmentError"]
