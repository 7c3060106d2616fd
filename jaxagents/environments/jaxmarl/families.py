"""Properties of JaxMARL's environments that its interface does not expose, by family."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxagents.config import TimeLimits
from jaxagents.entities import EntityKind
from jaxagents.environments.jaxmarl.outcomes import (
    BATTLES_WON,
    BATTLES_WON_BY_ALLIES,
    COOPERATION,
    GOALS_REACHED,
    ORDERS_DELIVERED,
    OWN_COINS,
    POINTS,
    RIGHT_ORDERS_DELIVERED,
    TOLD_RIGHT,
    Step,
    coin_game_infos,
    hanabi_infos,
    jaxnav_infos,
    overcooked_infos,
    overcooked_v2_infos,
    riddle_infos,
    riddle_told,
    smax_battle,
    smax_infos,
    smax_sides,
    storm_infos,
)
from jaxagents.environments.quiet_import import load
from jaxagents.environments.success import Success
from jaxagents.errors import pip_install
from jaxagents.types import PyTree

_LIBRARY = "jaxmarl.environments"


def _by_name(env: Any, values: Mapping[Any, Array]) -> list[Array]:
    """List the actors' values; other entries, such as "world_state", are dropped."""
    return [values[name] for name in env.agents]


class Family(NamedTuple):
    """A group of JaxMARL environments with the same rules.

    Objects of the library are given by their path below ``jaxmarl.environments`` and imported when
    they are needed, as importing the whole library takes four seconds.
    """

    constructors: Mapping[str, str]  # by id
    truncated: Callable[[Any, Step], Bool[Array, "*actors"]]
    truncation_rule: str  # description of `truncated`, to be formatted with env
    time_limits: TimeLimits = "bootstrap"  # see `Environment`
    max_episode_steps: Callable[[Any], int | None] = lambda env: None
    elapsed: Callable[[Any, Any], Array] | None = None  # steps since the reset, from env and state
    base: tuple[str, ...] = ()  # base classes of the environments; empty: the constructors
    available: Callable[[Any, PyTree], Sequence[Array]] | None = None  # action masks by actor
    features: Callable[[Any, Any], Sequence[Array]] = _by_name  # observations by actor
    global_state: Callable[[Any, PyTree], Array] | None = None
    pack: Callable[[dict], Any] = lambda actions: actions  # into the argument of step_env
    infos: Callable[[Any, Step], dict[str, Array]] = lambda env, step: {}  # additional infos
    success: Success | None = None
    entities: Callable[[Any], Mapping[str, EntityKind] | None] = lambda env: None
    rewards_after_death: bool = False
    silent_keywords: frozenset[str] = frozenset()  # accepted through **kwargs
    silent_class: str | None = None  # whose keywords are accepted through **kwargs
    fixed_keywords: Mapping[str, Any] = {}
    values: Mapping[str, str] = {}  # dictionaries of named values, by keyword

    @property
    def bases(self) -> tuple[str, ...]:
        """Paths of the base classes of the family's environments."""
        return self.base or tuple(self.constructors.values())

    def load_constructor(self, env_id: str) -> Callable[..., Any]:
        """Import the constructor of an environment."""
        return _load(self.constructors[env_id])

    def load_bases(self) -> tuple[type, ...]:
        """Import `bases`."""
        return tuple(map(_load, self.bases))

    def load_values(self) -> dict[str, Mapping[str, Any]]:
        """Import the named values of keywords, by keyword and name."""
        return {keyword: _load(path) for keyword, path in self.values.items()}

    def load_silent_keywords(self) -> frozenset[str]:
        """List the keywords that the constructors accept only through ``**kwargs``."""
        if self.silent_class is None:
            return self.silent_keywords
        cls = _load(self.silent_class)
        return self.silent_keywords.union(inspect.signature(cls.__init__).parameters)


def _load(path: str) -> Any:
    return load(f"{_LIBRARY}.{path}")


def _mpe_truncated(env: Any, step: Step) -> Array:
    # The library compares the step count before incrementing it.
    return step.previous_state.step >= env.max_steps


def _smax_truncated(env: Any, step: Step) -> Array:
    allies, enemies = smax_sides(env, step.state)
    # As in MPE, the library compares the step count before incrementing it.
    time_up = smax_battle(step.previous_state).step >= env.max_steps
    alive = jnp.concatenate([allies, enemies])[: len(env.agents)]
    return time_up & jnp.any(allies) & jnp.any(enemies) & alive


def _smax_entities(env: Any) -> dict[str, EntityKind] | None:
    width, allies, enemies = len(env.unit_features), env.num_allies, env.num_enemies
    if allies != enemies and len(env.agents) > allies:
        return None  # the sides observe different numbers
    if env.observation_type != "unit_list":
        return None
    # First of all the other allies, then the enemies, then the unit itself.
    return {
        "allies": EntityKind(allies - 1, ((0, width),)),
        "enemies": EntityKind(
            enemies,
            (((allies - 1) * width, width),),
            first_action=env.num_movement_actions if env.action_type == "discrete" else None,
        ),
    }


def _hanabi_entities(env: Any) -> dict[str, EntityKind]:
    # First the cards that each other player holds, and last what is known of everyone's cards, own
    # ones first: the probability of each card, and the colour and rank that were told. Hints depend
    # on who holds a card, so each player's cards are a kind.
    hand, card = env.hand_size, env.num_colors * env.num_ranks
    known = card + env.num_colors + env.num_ranks
    start = int(env.obs_size) - env.num_agents * hand * known
    kinds = {"own_cards": EntityKind(hand, ((start, known),), first_action=(0, hand))}
    for i in range(1, env.num_agents):
        name = "cards_of_others" if env.num_agents == 2 else f"cards_of_other_{i}"
        parts = (((i - 1) * hand * card, card), (start + i * hand * known, known))
        kinds[name] = EntityKind(hand, parts)
    return kinds


def _mpe_entities(env: Any) -> dict[str, EntityKind] | None:
    if type(env).__name__ != "SimpleSpreadMPE":
        return None
    n_agents, n_landmarks = env.num_agents, env.num_landmarks
    # The agent's velocity and position; vectors to landmarks and to others, and what these say.
    others = 4 + 2 * n_landmarks
    return {
        "landmarks": EntityKind(n_landmarks, ((4, 2),)),
        "others": EntityKind(n_agents - 1, ((others, 2), (others + 2 * (n_agents - 1), 2))),
    }


def _riddle_truncated(env: Any, step: Step) -> Array:
    return (step.state.step >= env.max_steps) & ~riddle_told(env, step)


def _riddle_available(env: Any, state: Any) -> list[Array]:
    """Mask all actions but NOTHING outside of the room, where the library ignores them."""
    nothing = jnp.arange(len(env.game_actions)) == env.game_actions["NOTHING"]
    return [nothing | (state.agent_in_room == i) for i in range(env.num_agents)]


def _steps_in_state(env: Any, state: Any) -> Array:
    del env
    return state.step


def _repeated_game_truncated(env: Any, step: Step) -> Array:
    del env
    # The library's only end is the last repetition, and it resets the step count there.
    return step.state.done


def _jaxnav_truncated(env: Any, step: Step) -> Array:
    finished = step.state.goal_reached | step.state.move_term
    # Unless finished actors evaporate, they stay until all have finished.
    finished = finished | step.previous_state.done if env.evaporating else jnp.all(finished)
    return (step.state.step >= env.max_steps) & ~finished


def _storm_features(env: Any, observation: Mapping[str, Array]) -> list[Array]:
    # Rows: coins of two kinds, whether they suffice to interact, what others see of both kinds.
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


_MPE = Family(
    constructors={
        "MPE_simple_v3": "mpe.simple.SimpleMPE",
        "MPE_simple_tag_v3": "mpe.simple_tag.SimpleTagMPE",
        "MPE_simple_world_comm_v3": "mpe.simple_world_comm.SimpleWorldCommMPE",
        "MPE_simple_spread_v3": "mpe.simple_spread.SimpleSpreadMPE",
        "MPE_simple_crypto_v3": "mpe.simple_crypto.SimpleCryptoMPE",
        "MPE_simple_speaker_listener_v4": "mpe.simple_speaker_listener.SimpleSpeakerListenerMPE",
        "MPE_simple_push_v3": "mpe.simple_push.SimplePushMPE",
        "MPE_simple_adversary_v3": "mpe.simple_adversary.SimpleAdversaryMPE",
        "MPE_simple_reference_v3": "mpe.simple_reference.SimpleReferenceMPE",
        "MPE_simple_facmac_v1": "mpe.simple_facmac.SimpleFacmacMPE",
        "MPE_simple_facmac_3a_v1": "mpe.simple_facmac.SimpleFacmacMPE3a",
        "MPE_simple_facmac_6a_v1": "mpe.simple_facmac.SimpleFacmacMPE6a",
        "MPE_simple_facmac_9a_v1": "mpe.simple_facmac.SimpleFacmacMPE9a",
    },
    base=("mpe.simple.SimpleMPE",),
    truncated=_mpe_truncated,
    truncation_rule="time limit: the step after max_steps = {env.max_steps} steps is the last",
    time_limits="terminal",
    max_episode_steps=lambda env: env.max_steps + 1,
    elapsed=_steps_in_state,
    entities=_mpe_entities,
    silent_keywords=frozenset(
        {"accel", "c_noise", "collide", "contact_force", "contact_margin", "damping"}
        | {"mass", "max_speed", "moveable", "rad", "silent", "u_noise"}
    ),
)
_SMAX = Family(
    constructors={"HeuristicEnemySMAX": "smax.heuristic_enemy_smax_env.HeuristicEnemySMAX"},
    base=("smax.heuristic_enemy_smax_env.EnemySMAX",),
    truncated=_smax_truncated,
    truncation_rule=(
        "time limit: the step after max_steps = {env.max_steps} steps is the last, "
        "unless it decides the battle"
    ),
    time_limits="terminal",
    max_episode_steps=lambda env: env.max_steps + 1,
    elapsed=lambda env, state: smax_battle(state).step,
    available=lambda env, state: _by_name(env, env.get_avail_actions(state)),
    global_state=lambda env, state: env.get_world_state(state),
    infos=smax_infos,
    entities=_smax_entities,
    success=BATTLES_WON,
    rewards_after_death=True,
    silent_class="smax.smax_env.SMAX",
    values={"scenario": "smax.smax_env.MAP_NAME_TO_SCENARIO"},
)
_SWITCH_RIDDLE = Family(
    constructors={"switch_riddle": "switch_riddle.switch_riddle.SwitchRiddle"},
    truncated=_riddle_truncated,
    truncation_rule="time limit: max_steps = {env.max_steps} steps, unless the last one tells",
    time_limits="terminal",
    max_episode_steps=lambda env: env.max_steps,
    elapsed=_steps_in_state,
    available=_riddle_available,
    infos=riddle_infos,
    success=TOLD_RIGHT,
)
_HANABI = Family(
    constructors={"hanabi": "hanabi.hanabi.HanabiEnv"},
    truncated=lambda env, step: jnp.array(False),
    truncation_rule="never: the deck runs out",
    available=lambda env, state: _by_name(env, env.get_legal_moves(state)),
    infos=hanabi_infos,
    success=POINTS,
    entities=_hanabi_entities,
)
_OVERCOOKED = Family(
    constructors={"overcooked": "overcooked.overcooked.Overcooked"},
    truncated=lambda env, step: step.state.step >= env.max_steps,
    truncation_rule="time limit: max_steps = {env.max_steps} steps",
    time_limits="terminal",
    max_episode_steps=lambda env: env.max_steps,
    elapsed=_steps_in_state,
    infos=overcooked_infos,
    success=ORDERS_DELIVERED,
    values={"layout": "overcooked.layouts.overcooked_layouts"},
)
_COIN_GAME = Family(
    constructors={"coin_game": "coin_game.coin_game.CoinGame"},
    truncated=_repeated_game_truncated,
    truncation_rule=(
        "time limit: num_inner_steps x num_outer_steps = "
        "{env.num_inner_steps} x {env.num_outer_steps} steps"
    ),
    time_limits="terminal",
    max_episode_steps=lambda env: env.num_inner_steps * env.num_outer_steps,
    elapsed=lambda env, state: state.outer_t * env.num_inner_steps + state.step,
    infos=coin_game_infos,
    success=OWN_COINS,
)
_STORM = _COIN_GAME._replace(
    constructors={"storm": "storm.storm_env.InTheGrid"},
    features=_storm_features,
    infos=storm_infos,
    success=COOPERATION,
)
_JAXNAV = Family(
    constructors={"jaxnav": "jaxnav.jaxnav_env.JaxNav"},
    truncated=_jaxnav_truncated,
    truncation_rule=(
        "time limit: max_steps = {env.max_steps} steps, unless all reached their goals or collided"
    ),
    max_episode_steps=lambda env: env.max_steps,
    elapsed=_steps_in_state,
    infos=jaxnav_infos,
    success=GOALS_REACHED,
    rewards_after_death=True,  # a part of them is shared by the team
)


_MABRAX = Family(
    constructors={
        "ant_4x2": "mabrax.mabrax_env.Ant",
        "halfcheetah_6x1": "mabrax.mabrax_env.HalfCheetah",
        "hopper_3x1": "mabrax.mabrax_env.Hopper",
        "humanoid_9|8": "mabrax.mabrax_env.Humanoid",
        "walker2d_2x3": "mabrax.mabrax_env.Walker2d",
    },
    base=("mabrax.mabrax_env.MABraxEnv",),
    truncated=lambda env, step: step.state.info["truncation"] > 0,
    truncation_rule=(
        "time limit: episode_length / action_repeat = {env.episode_length} / {env.action_repeat} "
        "steps"
    ),
    max_episode_steps=lambda env: -(-env.episode_length // env.action_repeat),
    # Brax's own reset would replace the final observation.
    fixed_keywords={"auto_reset": False},
)
FAMILIES = (
    _MPE,
    _SMAX._replace(
        constructors={"SMAX": "smax.smax_env.SMAX"},
        base=("smax.smax_env.SMAX",),
        success=BATTLES_WON_BY_ALLIES,
    ),
    _SMAX,
    _SWITCH_RIDDLE,
    _HANABI,
    _OVERCOOKED,
    _OVERCOOKED._replace(
        constructors={"overcooked_v2": "overcooked_v2.overcooked.OvercookedV2"},
        infos=overcooked_v2_infos,
        success=RIGHT_ORDERS_DELIVERED,
        values={"layout": "overcooked_v2.layouts.overcooked_v2_layouts"},
    ),
    _COIN_GAME,
    _STORM,
    _STORM._replace(
        constructors={"storm_2p": "storm.storm_2p.InTheGrid_2p"},
        features=_storm_2p_features,
        pack=lambda actions: tuple(actions.values()),
    ),
    _STORM._replace(
        constructors={"storm_np": "storm.storm.InTheMatrix"},
        features=lambda env, observation: list(observation),
    ),
    _JAXNAV,
    _MABRAX,
)


def supported_family(env_id: str) -> Family:
    """Find the family of an id of the library.

    Raises:
        ValueError: the environment is not supported, or brax is not installed.
    """
    for family in FAMILIES:
        if env_id in family.constructors:
            _refuse_without_brax(family, env_id)
            return family
    if env_id == "LearnedPolicyEnemySMAX":
        raise ValueError(
            f"jaxmarl/{env_id} needs the enemies' policy, which cannot be given with an id; "
            "construct JaxMARL's own environment and wrap it in JaxMARLEnvironment."
        )
    raise _unsupported(f"jaxmarl/{env_id}")


def family_of(env: Any) -> Family:
    """Find the family of an environment of the library.

    Raises:
        ValueError: the environment belongs to no supported family.
    """
    paths = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__}
    names = {path.removeprefix(f"{_LIBRARY}.") for path in paths}
    for family in FAMILIES:
        if not names.isdisjoint(family.bases):
            return family
    raise _unsupported(f"JaxMARL's {type(env).__name__}")


def _refuse_without_brax(family: Family, env_id: str) -> None:
    if family is not _MABRAX:
        return
    try:
        family.load_bases()
    except ImportError as error:
        raise ValueError(
            f"jaxmarl/{env_id} needs brax, which cannot be imported: {pip_install('brax')}."
        ) from error


def _unsupported(subject: str) -> ValueError:
    has_brax = importlib.util.find_spec("brax") is not None
    families = [family for family in FAMILIES if has_brax or family is not _MABRAX]
    supported = ", ".join(env_id for family in families for env_id in family.constructors)
    return ValueError(f"{subject} is not supported; choose one of {supported}.")
