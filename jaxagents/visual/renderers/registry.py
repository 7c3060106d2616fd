"""Chooses the renderer of an environment."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxagents.environments.action_repeat import ActionRepeat
from jaxagents.environments.environment_wrapper import EnvironmentWrapper
from jaxagents.environments.gymnax import GymnaxEnvironment
from jaxagents.environments.host.environment import HostEnvironment
from jaxagents.environments.hunting import Hunting
from jaxagents.environments.jaxmarl.adapter import JaxMARLEnvironment
from jaxagents.environments.sides.side import Side
from jaxagents.environments.spaces import Box, as_space
from jaxagents.evaluation.episodes import Episode
from jaxagents.visual.renderers import jaxmarl, pictures
from jaxagents.visual.renderers.gymnax import DRAWN, classic_control_scene, maze_scene
from jaxagents.visual.renderers.hunting import hunting_scene
from jaxagents.visual.renderers.scene import Actor, Scene, make_actors
from jaxagents.visual.renderers.strip_charts import strip_scene

# By the name of the library's class, so that the library need not be imported to look one up.
_JAXMARL_RENDERERS: dict[str, Callable[[Any, Episode, list[Actor]], Scene]] = {
    "SimpleMPE": jaxmarl.mpe_scene,
    "SMAX": jaxmarl.smax_scene,
    "EnemySMAX": jaxmarl.smax_scene,
    "CoinGame": jaxmarl.coin_game_scene,
    "JaxNav": jaxmarl.jaxnav_scene,
    "Overcooked": pictures.overcooked_scene,
    "OvercookedV2": pictures.overcooked_v2_scene,
    "InTheGrid": pictures.storm_scene,
    "InTheGrid_2p": pictures.storm_scene,
    "InTheMatrix": pictures.storm_scene,
    "HanabiEnv": pictures.printed_scene,
    "SwitchRiddle": pictures.printed_scene,
}


def make_scene(env: Any, params: Any, episode: Episode) -> Scene:
    """Make an episode's scene with its environment's renderer.

    Without one, the scene consists of images or strip charts.

    Args:
        env: The environment, as `jaxagents.make` returns it.
        params: Its parameters.
        episode: An episode of it.
    """
    actors = make_actors(_names(env), getattr(env, "teams", None))
    if episode.states is not None:
        whole = env.env if isinstance(env, Side) else env
        everyone = make_actors(_names(whole), getattr(whole, "teams", None))
        scene = _scene_of_states(whole, params, episode, everyone)
        if scene is not None:
            return _of_side(scene, env.actors) if isinstance(env, Side) else scene
    if isinstance(env, HostEnvironment) and (scene := pictures.pixel_scene(episode, actors)):
        return scene
    if pictures.shows_cells(episode):
        return pictures.cell_scene(episode, actors)
    space = as_space(env.action_space(params))
    return strip_scene(episode, actors, None if isinstance(space, Box) else space.n_choices)


def _of_side(scene: Scene, actors: Sequence[int]) -> Scene:
    """List the actors that the agent plays; the pictures show all."""
    alive = None if scene.alive is None else scene.alive[:, np.asarray(actors)]
    return scene._replace(actors=[scene.actors[i] for i in actors], alive=alive)


def _scene_of_states(env: Any, params: Any, episode: Episode, actors: list[Actor]) -> Scene | None:
    """Draw the environment's states; return None if no renderer knows them."""
    if hasattr(env, "draw"):
        return pictures.drawn_scene(env, params, episode, actors)
    if isinstance(env, EnvironmentWrapper):
        scene = _scene_of_states(env.env, params, episode, actors)
        if scene is not None and isinstance(env, ActionRepeat):  # a picture per action
            return scene._replace(seconds_per_step=scene.seconds_per_step * env.n_steps)
        return scene
    if isinstance(env, HostEnvironment):
        return pictures.recorded_scene(env.frames_per_second, episode, actors)
    if isinstance(env, Hunting):
        return hunting_scene(params, episode)
    if isinstance(env, GymnaxEnvironment):
        if env.name in DRAWN:
            return classic_control_scene(env.name, params, episode, actors)
        if hasattr(env.env, "occupied_map"):
            return maze_scene(env.env, episode, actors)
    if isinstance(env, JaxMARLEnvironment):
        return _jaxmarl_scene(env.env, episode, actors)
    return None


def _jaxmarl_scene(env: Any, episode: Episode, actors: list[Actor]) -> Scene | None:
    for cls in type(env).__mro__:
        if cls.__name__ in _JAXMARL_RENDERERS:
            try:
                return _JAXMARL_RENDERERS[cls.__name__](env, episode, actors)
            except ImportError:  # the library's renderer needs a package that is not installed
                return None
    return None


def _names(env: Any) -> list[str]:
    """Name the actors as the library does."""
    while isinstance(env, EnvironmentWrapper):
        env = env.env
    library_names = getattr(getattr(env, "env", None), "agents", None)
    if library_names is not None:
        names = [str(name) for name in library_names]
        return [f"agent {name}" if name.isdigit() else name for name in names]
    return [f"actor {index}" for index in range(env.n_actors)]
