"""What JaxMARL's interface does not say about its environments, family by family."""

import contextlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Hide what JaxMARL prints at import: which optional parts it lacks.

    While it is imported it also points the standard streams at the process's own, past a
    redirection: they are replaced as well meanwhile, and all are put back.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sys.stdout = sys.__stdout__ = io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, stream in streams.items():
            setattr(sys, name, stream)


with _silenced():
    import jaxmarl
    from jaxmarl.environments import (
        MABRAX_AVAILABLE,
        SMAX,
        CoinGame,
        Hanabi,
        InTheGrid,
        InTheGrid_2p,
        InTheMatrix,
        JaxNav,
        Overcooked,
        OvercookedV2,
        SimpleMPE,
        SwitchRiddle,
        overcooked_layouts,
        overcooked_v2_layouts,
    )
    from jaxmarl.environments.smax.heuristic_enemy_smax_env import EnemySMAX
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

MABRAX_IDS = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")


class Step(NamedTuple):
    """One step of the library, as far as rules look at it."""

    previous_state: Any
    actions: Mapping[Any, Array]  # by the library's names of the actors
    state: Any


def _by_name(env: Any, values: Mapping[Any, Array]) -> list[Array]:
    """List the actors' values; other entries, such as "world_state", are not theirs."""
    return [values[name] for name in env.agents]


class Family(NamedTuple):
    """A group of JaxMARL's environments that work alike."""

    ids: tuple[str, ...]
    base: tuple[type, ...]  # of all its environments
    truncated: Callable[[Any, Step], Bool[Array, "*actors"]]
    truncation_rule: str  # the same in words, to be formatted with env
    available: Callable[[Any, PyTree], Sequence[Array]] | None = None  # the actors' masks
    features: Callable[[Any, Any], Sequence[Array]] = _by_name  # what each actor observes
    global_state: Callable[[Any, PyTree], Array] | None = None
    pack: Callable[[dict], Any] = lambda actions: actions  # into what step_env takes
    infos: Callable[[Any, Step], dict[str, Array]] = lambda env, step: {}  # beside its own
    rewards_after_death: bool = False
    silent_keywords: frozenset[str] = frozenset()  # accepted at construction, in no signature
    fixed_keywords: Mapping[str, Any] = {}
    named_values: Mapping[str, Mapping[str, Any]] = {}  # of keywords, that may be given by name


def _mpe_truncated(env: Any, step: Step) -> Array:
    # The library compares the step count before it counts the step.
    return step.previous_state.step >= env.max_steps


def _smax_battle(state: Any) -> Any:
    """Return the state of the battle, without that of the policy of built-in enemies."""
    return getattr(state, "state", state)


def _smax_sides(env: Any, state: Any) -> tuple[Array, Array]:
    """Say which allies are alive, and which enemies."""
    alive = _smax_battle(state).unit_alive
    return alive[: env.num_allies], alive[env.num_allies :]


def _smax_truncated(env: Any, step: Step) -> Array:
    allies, enemies = _smax_sides(env, step.state)
    # Here too the library compares before it counts.
    time_up = _smax_battle(step.previous_state).step >= env.max_steps
    alive = jnp.concatenate([allies, enemies])[: len(env.agents)]
    return time_up & jnp.any(allies) & jnp.any(enemies) & alive


def _smax_infos(env: Any, step: Step) -> dict[str, Array]:
    allies, enemies = _smax_sides(env, step.state)
    return {"won": (jnp.any(allies) & ~jnp.any(enemies)).astype(jnp.float32)}


def _smax_global_state(env: Any, state: Any) -> Array:
    return env.get_world_state(state)


def _smax_available(env: Any, state: Any) -> list[Array]:
    return _by_name(env, env.get_avail_actions(state))


def _riddle_truncated(env: Any, step: Step) -> Array:
    in_room = step.previous_state.agent_in_room
    told = jnp.stack(_by_name(env, step.actions))[in_room] == env.game_actions["TELL"]
    return (step.state.step >= env.max_steps) & ~told


def _riddle_available(env: Any, state: Any) -> list[Array]:
    """Leave only NOTHING to those outside the room, whose actions the library ignores."""
    nothing = jnp.arange(len(env.game_actions)) == env.game_actions["NOTHING"]
    return [nothing | (state.agent_in_room == i) for i in range(env.num_agents)]


def _hanabi_available(env: Any, state: Any) -> list[Array]:
    return _by_name(env, env.get_legal_moves(state))


def _overcooked_truncated(env: Any, step: Step) -> Array:
    return step.state.step >= env.max_steps


def _repeated_game_truncated(env: Any, step: Step) -> Array:
    del env
    # The library ends nothing but the last repetition, and the count of its steps is gone then.
    return step.state.done


def _jaxnav_truncated(env: Any, step: Step) -> Array:
    finished = step.state.goal_reached | step.state.move_term
    # Those who do not evaporate stay until the episode is over for all.
    finished = finished | step.previous_state.done if env.evaporating else jnp.all(finished)
    return (step.state.step >= env.max_steps) & ~finished


def _storm_features(env: Any, observation: Mapping[str, Array]) -> list[Array]:
    # Rows: two kinds of coins, whether there are enough to interact, what others see of the two.
    inventory = [jnp.roll(observation["inventory"], -i, axis=1) for i in range(env.num_agents)]
    return [
        _with_planes(image, jnp.concatenate([mine[:3, 0], mine[2:, 1:].T.ravel()]))
        for image, mine in zip(observation["observations"], inventory, strict=True)
    ]


def _storm_2p_features(env: Any, observation: Sequence[Mapping[str, Array]]) -> list[Array]:
    del env
    return [_with_planes(each["observation"], each["inventory"]) for each in observation]


def _with_planes(image: Array, values: Array) -> Array:
    """Append each value to the image as a constant channel."""
    planes = jnp.broadcast_to(values, (*image.shape[:2], values.size))
    return jnp.concatenate([image, planes.astype(image.dtype)], axis=-1)


def _parameters(cls: type) -> frozenset[str]:
    return frozenset(inspect.signature(cls.__init__).parameters)


_MPE = Family(
    ids=tuple(name for name in jaxmarl.registered_envs if name.startswith("MPE_")),
    base=(SimpleMPE,),
    truncated=_mpe_truncated,
    truncation_rule="time limit: the step after max_steps = {env.max_steps} steps is the last",
    silent_keywords=frozenset(
        {"accel", "c_noise", "collide", "contact_force", "contact_margin", "damping"}
        | {"mass", "max_speed", "moveable", "rad", "silent", "u_noise"}
    ),
)
_SMAX = Family(
    ids=("SMAX", "HeuristicEnemySMAX"),
    base=(SMAX, EnemySMAX),
    truncated=_smax_truncated,
    truncation_rule=(
        "time limit: the step after max_steps = {env.max_steps} steps is the last, "
        "unless it decides the battle"
    ),
    available=_smax_available,
    global_state=_smax_global_state,
    infos=_smax_infos,
    rewards_after_death=True,
    silent_keywords=_parameters(SMAX),
    named_values={"scenario": MAP_NAME_TO_SCENARIO},
)
_SWITCH_RIDDLE = Family(
    ids=("switch_riddle",),
    base=(SwitchRiddle,),
    truncated=_riddle_truncated,
    truncation_rule="time limit: max_steps = {env.max_steps} steps, unless the last one tells",
    available=_riddle_available,
)
_HANABI = Family(
    ids=("hanabi",),
    base=(Hanabi,),
    truncated=lambda env, step: jnp.array(False),
    truncation_rule="never: the deck runs out",
    available=_hanabi_available,
)
_OVERCOOKED = Family(
    ids=("overcooked",),
    base=(Overcooked,),
    truncated=_overcooked_truncated,
    truncation_rule="time limit: max_steps = {env.max_steps} steps",
    named_values={"layout": overcooked_layouts},
)
_REPEATED_GAME = Family(
    ids=("coin_game",),
    base=(CoinGame,),
    truncated=_repeated_game_truncated,
    truncation_rule=(
        "time limit: num_inner_steps x num_outer_steps = "
        "{env.num_inner_steps} x {env.num_outer_steps} steps"
    ),
)
_JAXNAV = Family(
    ids=("jaxnav",),
    base=(JaxNav,),
    truncated=_jaxnav_truncated,
    truncation_rule=(
        "time limit: max_steps = {env.max_steps} steps, unless all reached their goals or collided"
    ),
    rewards_after_death=True,  # a part of them is the team's
)


def _mabrax() -> tuple[Family, ...]:
    if not MABRAX_AVAILABLE:
        return ()
    from jaxmarl.environments.mabrax.mabrax_env import MABraxEnv

    family = Family(
        ids=MABRAX_IDS,
        base=(MABraxEnv,),
        truncated=lambda env, step: step.state.info["truncation"] > 0,
        truncation_rule="time limit: episode_length = {env.episode_length} steps",
        # Brax would put the next episode's observation in the place of the last one.
        fixed_keywords={"auto_reset": False},
    )
    return (family,)


FAMILIES = (
    _MPE,
    _SMAX,
    _SWITCH_RIDDLE,
    _HANABI,
    _OVERCOOKED,
    _OVERCOOKED._replace(
        ids=("overcooked_v2",),
        base=(OvercookedV2,),
        named_values={"layout": overcooked_v2_layouts},
    ),
    _REPEATED_GAME,
    _REPEATED_GAME._replace(ids=("storm",), base=(InTheGrid,), features=_storm_features),
    _REPEATED_GAME._replace(
        ids=("storm_2p",),
        base=(InTheGrid_2p,),
        features=_storm_2p_features,
        pack=lambda actions: tuple(actions.values()),
    ),
    _REPEATED_GAME._replace(
        ids=("storm_np",),
        base=(InTheMatrix,),
        features=lambda env, observation: list(observation),
    ),
    _JAXNAV,
    *_mabrax(),
)


def supported_family(env_id: str) -> Family:
    """Find the family of one of the library's ids.

    Raises:
        ValueError: it is not supported, or not without what is not installed.
    """
    for family in FAMILIES:
        if env_id in family.ids:
            return family
    if env_id in MABRAX_IDS:
        raise ValueError(
            f'jaxmarl/{env_id} needs brax, which cannot be imported: pip install "jaxagents[brax]".'
        )
    if env_id == "LearnedPolicyEnemySMAX":
        raise ValueError(
            f"jaxmarl/{env_id} needs the enemies' policy, which an id cannot name; construct "
            "JaxMARL's own environment and wrap it in JaxMARLEnvironment."
        )
    raise _unsupported(f"jaxmarl/{env_id}")


def family_of(env: Any) -> Family:
    """Find the family of one of the library's environments.

    Raises:
        ValueError: it is of no supported family.
    """
    for family in FAMILIES:
        if isinstance(env, family.base):
            return family
    raise _unsupported(f"JaxMARL's {type(env).__name__}")


def _unsupported(subject: str) -> ValueError:
    supported = ", ".join(env_id for family in FAMILIES for env_id in family.ids)
    return ValueError(f"{subject} is not supported; of JaxMARL, there are {supported}.")
