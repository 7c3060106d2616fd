"""Environments that are not written in JAX: Gymnasium's, PettingZoo's and a user's own, in workers.

The registry and the agent, through the factory of batches, may import it; `worker` and everything
that it imports run in processes without jax.
"""


class HostEnvironmentError(RuntimeError):
    """An environment in a worker process failed; the message names it and the step."""


class WrongValueError(ValueError):
    """An environment returned what its spaces do not allow; the message begins "returned"."""


class VectorRewardError(WrongValueError):
    """An environment returned a reward that is not one number."""
