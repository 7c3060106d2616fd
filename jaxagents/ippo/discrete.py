"""IPPO for discrete actions."""

from jaxagents.environments.spaces import ActionSpace, Box, Discrete
from jaxagents.ippo.base import IPPOBase
from jaxagents.ippo.distributions import Categorical, CategoricalProduct, Distribution


class DiscreteIPPO(IPPOBase):
    """IPPO with a categorical distribution, or a product of them for `MultiDiscrete` actions.

    Actions that the observation's ``action_mask`` excludes have probability 0.
    """

    def _make_distribution(self, space: ActionSpace) -> Distribution:
        if isinstance(space, Box):
            raise TypeError(
                f"DiscreteIPPO plays discrete actions, but {type(self.env).__name__} has a Box of "
                f"shape {space.shape}; use jaxagents.ContinuousIPPO."
            )
        if isinstance(space, Discrete):
            return Categorical(space)
        return CategoricalProduct(space)
