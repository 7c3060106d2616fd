"""JaxNav's observations in a form from which networks learn sooner."""

from typing import final

import jax.numpy as jnp

from jaxagents.environments.environment_wrapper import EnvironmentWrapper
from jaxagents.environments.jaxmarl.adapter import JaxMARLEnvironment
from jaxagents.environments.protocol import Environment
from jaxagents.types import Observation, PyTree


@final
class JaxNavFeatures(EnvironmentWrapper):
    """JaxMARL's jaxnav, where robots observe nearness and a direction that does not jump.

    The goal's angle jumps from π to -π behind the robot; its sine and cosine take its place. And
    whether a robot is about to collide is a difference of centimetres in lidar ranges of metres, so
    each beam's nearness, exp(-(d - r) / r), follows the lidar: 1 where the obstacle's distance d is
    the robot's radius r, and close to 0 beyond a few radii.

    Args:
        env: What `make` returns for "jaxmarl/jaxnav".

    Raises:
        TypeError: it is another environment.
    """

    def __init__(self, env: Environment):
        super().__init__(env)
        if not isinstance(env, JaxMARLEnvironment) or not hasattr(env.env, "lidar_num_beams"):
            raise TypeError(
                f"JaxNavFeatures needs jaxmarl/jaxnav itself, and {type(env).__name__} is another; "
                "name this wrapper first."
            )
        self._jaxnav = env.env

    def observe(self, observation: PyTree | Observation) -> Observation:
        """Change the features, ``[robots, beams + 5]``, to ``[robots, 2 * beams + 6]``."""
        n_beams, radius = self._jaxnav.lidar_num_beams, self._jaxnav.rad
        # Of a robot: the beams' ranges, its two speeds, the goal's distance and angle, and λ. All
        # are scaled: with normalise_obs=False the library fails.
        ranges, before, angle, after = jnp.split(
            observation.features, [n_beams, n_beams + 3, n_beams + 4], axis=-1
        )
        distance = self._jaxnav.unnormalise_lidar(ranges)
        nearness = jnp.exp(-jnp.maximum(distance - radius, 0) / radius)
        angle *= jnp.pi
        parts = [ranges, nearness, before, jnp.sin(angle), jnp.cos(angle), after]
        return observation._replace(features=jnp.concatenate(parts, axis=-1))
