"""IPPO for discrete actions."""

from typing import final

from jaxagents.environments.spaces import Box, Discrete
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.distributions import Categorical


@final
class DiscreteIPPO(IPPOBase):
    """IPPO with a categorical distribution.

    Actions that the observation's ``action_mask`` excludes have probability 0.
    """

    def _make_distribution(self, space: Discrete | Box) -> Categorical:
        if not isinstance(space, Discrete):
            raise TypeError(
                f"DiscreteIPPO plays discrete actions, but {type(self.env).__name__} has a Box of "
                f"shape {space.shape}; use jaxagents.ContinuousIPPO."
            )
        return Categorical(space)
