"""The choice of a renderer for an environment."""

from collections.abc import Callable
from typing import Any

from jaxagents.environments.spaces import Discrete, as_space
from jaxagents.evaluation.trajectories import Trajectory
from jaxagents.visual.renderers.grids import coin_game_scene, jaxnav_scene, maze_scene
from jaxagents.visual.renderers.image_observations import image_scene, shows_images
from jaxagents.visual.renderers.scene import Actor, Scene, make_actors
from jaxagents.visual.renderers.strip_charts import strip_scene


def make_scene(env: Any, params: Any, trajectory: Trajectory) -> Scene:
    """Draw an episode with what there is for its environment, or as strips.

    Args:
        env: The environment, as `jaxagents.make` returns it.
        params: Its parameters.
        trajectory: An episode in it.
    """
    actors = make_actors(_names(env), getattr(env, "teams", None))
    own = None
    if trajectory.states is not None:
        own = _own_scene(env, params, trajectory, actors)
    if own is not None:
        return own
    if shows_images(trajectory):
        return image_scene(trajectory, actors)
    space = as_space(env.action_space(params))
    return strip_scene(trajectory, actors, space.n if isinstance(space, Discrete) else None)


def _own_scene(env: Any, params: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene | None:
    # A class says where it comes from: its library need not be imported to tell.
    module = type(env).__module__
    if module == "jaxagents.environments.hunting":
        from jaxagents.visual.renderers.hunting import hunting_scene

        return hunting_scene(params, trajectory)
    if module == "jaxagents.environments.gymnax":
        from jaxagents.visual.renderers.classic_control import DRAWN, classic_control_scene

        if env.name in DRAWN:
            return classic_control_scene(env.name, params, trajectory, actors)
        if hasattr(env.env, "occupied_map"):
            return maze_scene(env.env, trajectory, actors)
    if module == "jaxagents.environments.jaxmarl":
        return _jaxmarl_scene(env.env, trajectory, actors)
    return None


def _jaxmarl_scene(env: Any, trajectory: Trajectory, actors: list[Actor]) -> Scene | None:
    from jaxagents.visual.renderers import library_renderers as library
    from jaxagents.visual.renderers.mpe import mpe_scene
    from jaxagents.visual.renderers.smax import smax_scene

    renderers: dict[str, Callable[[Any, Trajectory, list[Actor]], Scene]] = {
        "SimpleMPE": mpe_scene,
        "SMAX": smax_scene,
        "EnemySMAX": smax_scene,
        "CoinGame": coin_game_scene,
        "JaxNav": jaxnav_scene,
        "Overcooked": library.overcooked_scene,
        "OvercookedV2": library.overcooked_v2_scene,
        "InTheGrid": library.storm_scene,
        "InTheGrid_2p": library.storm_scene,
        "InTheMatrix": library.storm_scene,
        "HanabiEnv": library.text_scene,
        "SwitchRiddle": library.text_scene,
    }
    for cls in type(env).__mro__:
        if cls.__name__ in renderers:
            try:
                return renderers[cls.__name__](env, trajectory, actors)
            except ImportError:  # of what the library's renderer needs and jaxagents does not
                return None
    return None


def _names(env: Any) -> list[str]:
    """Call the actors as the library does."""
    library_names = getattr(getattr(env, "env", None), "agents", None)
    if library_names is not None:
        names = [str(name) for name in library_names]
        return [f"agent {name}" if name.isdigit() else name for name in names]
    return [f"actor {index}" for index in range(env.n_actors)]
