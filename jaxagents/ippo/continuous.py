"""IPPO for continuous actions."""

import numpy as np

from jaxagents.environments.spaces import ActionSpace, Box
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.distributions import ClippedGaussian, DiagonalGaussian, SquashedGaussian


class ContinuousIPPO(IPPOBase):
    """IPPO with a diagonal Gaussian whose log standard deviation is a parameter of its own.

    With ``squash=False`` the sampled action is clipped to the environment's bounds. With
    ``squash=True`` its tanh is scaled to them. Dimensions that the observation's ``action_mask``
    excludes are left out of log probability and entropy.
    """

    def _make_distribution(self, space: ActionSpace) -> DiagonalGaussian:
        if not isinstance(space, Box):
            raise TypeError(
                f"ContinuousIPPO plays Box actions, but {type(self.env).__name__} has "
                f"{space}; use jaxagents.DiscreteIPPO."
            )
        if not self.config.squash:
            return ClippedGaussian(space)
        with np.errstate(over="ignore", invalid="ignore"):
            width = space.high - space.low
        if not np.all(np.isfinite(width) & (width > 0)):
            raise ValueError(
                f"squash=True needs finite bounds that differ, but {type(self.env).__name__} has "
                f"actions in {space}; use squash=False."
            )
        return SquashedGaussian(space)
