"""Environments by name, and the arguments that choose their rules.

A library is imported when one of its environments is made.
"""

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from jaxagents.environments.quiet_import import SILENCE, load
from jaxagents.environments.spaces import as_space
from jaxagents.environments.suites.catalogue import SUITES
from jaxagents.environments.wrappers import named_wrappers, wrap
from jaxagents.errors import Registry, did_you_mean, pip_install

# Importing gymnax also imports all of its environments, pandas and scipy: 1.2 s.
_GYMNAX_CLASSES = {
    "CartPole-v1": "classic_control.cartpole.CartPole",
    "Pendulum-v1": "classic_control.pendulum.Pendulum",
    "Acrobot-v1": "classic_control.acrobot.Acrobot",
    "MountainCar-v0": "classic_control.mountain_car.MountainCar",
    "MountainCarContinuous-v0": "classic_control.continuous_mountain_car.ContinuousMountainCar",
    "Asterix-MinAtar": "minatar.asterix.MinAsterix",
    "Breakout-MinAtar": "minatar.breakout.MinBreakout",
    "Freeway-MinAtar": "minatar.freeway.MinFreeway",
    "Seaquest-MinAtar": "minatar.seaquest.MinSeaquest",
    "SpaceInvaders-MinAtar": "minatar.space_invaders.MinSpaceInvaders",
    "Catch-bsuite": "bsuite.catch.Catch",
    "DeepSea-bsuite": "bsuite.deep_sea.DeepSea",
    "MemoryChain-bsuite": "bsuite.memory_chain.MemoryChain",
    "UmbrellaChain-bsuite": "bsuite.umbrella_chain.UmbrellaChain",
    "DiscountingChain-bsuite": "bsuite.discounting_chain.DiscountingChain",
    "MNISTBandit-bsuite": "bsuite.mnist.MNISTBandit",  # downloads its images at construction
    "SimpleBandit-bsuite": "bsuite.bandit.SimpleBandit",
    "FourRooms-misc": "misc.rooms.FourRooms",
    "MetaMaze-misc": "misc.meta_maze.MetaMaze",
    "PointRobot-misc": "misc.point_robot.PointRobot",
    "BernoulliBandit-misc": "misc.bernoulli_bandit.BernoulliBandit",
    "GaussianBandit-misc": "misc.gaussian_bandit.GaussianBandit",
    "Reacher-misc": "misc.reacher.Reacher",
    "Swimmer-misc": "misc.swimmer.Swimmer",
    "Pong-misc": "misc.pong.Pong",
    "FrozenLake-misc": "misc.frozen_lake.FrozenLake",
}
GYMNAX_IDS = tuple(f"gymnax/{name}" for name in _GYMNAX_CLASSES)
JAXMARL_IDS = (
    "jaxmarl/MPE_simple_v3",
    "jaxmarl/MPE_simple_tag_v3",
    "jaxmarl/MPE_simple_world_comm_v3",
    "jaxmarl/MPE_simple_spread_v3",
    "jaxmarl/MPE_simple_crypto_v3",
    "jaxmarl/MPE_simple_speaker_listener_v4",
    "jaxmarl/MPE_simple_push_v3",
    "jaxmarl/MPE_simple_adversary_v3",
    "jaxmarl/MPE_simple_reference_v3",
    "jaxmarl/MPE_simple_facmac_v1",
    "jaxmarl/MPE_simple_facmac_3a_v1",
    "jaxmarl/MPE_simple_facmac_6a_v1",
    "jaxmarl/MPE_simple_facmac_9a_v1",
    "jaxmarl/switch_riddle",
    "jaxmarl/SMAX",
    "jaxmarl/HeuristicEnemySMAX",
    "jaxmarl/storm",
    "jaxmarl/storm_2p",
    "jaxmarl/storm_np",
    "jaxmarl/hanabi",
    "jaxmarl/overcooked",
    "jaxmarl/overcooked_v2",
    "jaxmarl/coin_game",
    "jaxmarl/jaxnav",
)
MABRAX_IDS = (
    "jaxmarl/ant_4x2",
    "jaxmarl/halfcheetah_6x1",
    "jaxmarl/hopper_3x1",
    "jaxmarl/humanoid_9|8",
    "jaxmarl/walker2d_2x3",
)
HUNTING_IDS = ("hunting/discrete", "hunting/continuous")

_OF_USERS_REMEDY = (
    " Commands know ids registered in Python by --import MODULE, or by an entry point of an "
    "installed package (docs/plugins.md)."
)
_PARAMS_REMEDY = " To change its rules, use env_params.replace(...)."

ENVIRONMENTS: Registry[Callable[..., Any]] = Registry("environment", "jaxagents.environments")
"""Factories of the environments that users and installed packages add."""


class EnvironmentInfo(NamedTuple):
    """Description of an environment with its default parameters."""

    id: str
    n_actors: int
    observation_shape: tuple[int, ...]  # of one actor
    observation_dtype: str
    action_space: str  # of one actor
    traits: tuple[str, ...]  # other properties, such as "masks"
    truncation_rule: str


def make(env_id: str, **env_kwargs: Any) -> tuple[Any, Any]:
    """Construct an environment.

    Args:
        env_id: One of `registered_ids`; or ``gymnasium/`` followed by an id of Gymnasium's
            registry, or by a module, a colon, and an id that it registers or a constructor; or
            ``pettingzoo/`` followed by a package with PettingZoo's interface, a colon and a module,
            such as ``pettingzoo/mpe2:simple_spread_v3``; or ``envpool/`` followed by an id of
            EnvPool.
        env_kwargs: Arguments of the library's constructor; ``wrappers``, each a name
            ``module:name`` or a mapping from it to keyword arguments, such as
            ``{"jaxagents:ActionRepeat": {"n_steps": 4}}``; with Gymnasium and PettingZoo also the
            arguments of `HostEnvironment` except ``max_episode_steps``, which goes to the library,
            and ``make_drawn``; and ``reward_weights`` of vectors of rewards. EnvPool takes only
            some of these.

    Returns:
        The environment and its default parameters, which are the library's own; None for
        environments outside of JAX.

    Raises:
        TypeError: the id is no text.
        ValueError: the id is unknown or not supported, or the constructor refuses the arguments;
            or jax lacks the platform that ``JAX_PLATFORMS`` names.
        EntryPointError: the package that provides the environment cannot be used.
    """
    if not isinstance(env_id, str):
        raise TypeError(
            f"env_id={env_id!r} is no id, such as 'gymnax/CartPole-v1'; agents take your own "
            "environments as they are."
        )
    library, _, name = env_id.partition("/")
    with _explaining_platform():
        if library in _MAKERS and env_id not in ENVIRONMENTS:
            env = _MAKERS[library](name, env_kwargs)
        elif (factory := ENVIRONMENTS.find(env_id)) is not None:
            env = _construct(env_id, factory, env_kwargs)
        else:
            raise _unknown(env_id, _OF_USERS_REMEDY if name or ":" in env_id else "")
        return env, getattr(env, "default_params", None)


def register_environment(env_id: str, factory: Callable[..., Any]) -> None:
    """Add an environment to those that `make` and configurations know.

    Args:
        env_id: The new id; a prefix such as "mine/" avoids collisions.
        factory: Called with the keyword arguments of `make`; returns the environment. `make`
            returns the environment's ``default_params`` (or None) with it.

    Raises:
        TypeError: the factory cannot be called.
        ValueError: the id is taken by another environment.
    """
    if env_id in _built_in_ids():
        raise ValueError(f"the environment {env_id!r} is taken; choose another name.")
    ENVIRONMENTS.register(env_id, factory)


register = register_environment
"""The same function, under its first name."""


def registered_ids() -> list[str]:
    """List the ids that `make` can construct, those of installed packages included."""
    return [*_built_in_ids(), *ENVIRONMENTS.names()]


def describe(env_id: str) -> EnvironmentInfo:
    """Construct an environment and describe it."""
    from jaxagents.environments.factory import batch_of
    from jaxagents.environments.time_limits import time_limit_of

    env, params = make(env_id)
    limit = time_limit_of(env, params, max_episode_steps=None, time_limits=None, observe_time=False)
    environments = batch_of(env, params, max_episode_steps=None, time_limit=limit)
    features = environments.observation.features
    return EnvironmentInfo(
        id=env_id,
        n_actors=environments.n_actors,
        observation_shape=features.shape[1:],
        observation_dtype=features.dtype.name,
        action_space=str(as_space(env.action_space(params))),
        traits=tuple(_traits(environments)),
        truncation_rule=getattr(env, "truncation_rule", None)
        or _time_limit_text(params, limit.n_steps),
    )


@contextlib.contextmanager
def _explaining_platform() -> Iterator[None]:
    """If something fails because a platform is missing, say so.

    The platform is checked only after the failure: the check initialises devices, and
    `jax.distributed` must be set up before that.
    """
    try:
        yield
    except (RuntimeError, AssertionError, ValueError):
        if "jax" in sys.modules:
            from jaxagents.compiler.platform import check_platform

            check_platform()
        raise


def _make_gymnax(name: str, env_kwargs: dict[str, Any]) -> Any:
    from jaxagents.environments.gymnax import GymnaxEnvironment

    factory = _gymnax_factory(name)
    return GymnaxEnvironment(_construct(f"gymnax/{name}", factory, env_kwargs, _PARAMS_REMEDY))


def _gymnax_factory(name: str) -> Callable[..., Any]:
    if name in _GYMNAX_CLASSES:
        return load(f"gymnax.environments.{_GYMNAX_CLASSES[name]}")
    import gymnax  # for those that its users have registered

    if name not in gymnax.registered_envs:
        raise _unknown(f"gymnax/{name}")
    return lambda **kwargs: gymnax.make(name, **kwargs)[0]


def _make_jaxmarl(name: str, env_kwargs: dict[str, Any]) -> Any:
    from jaxagents.environments.jaxmarl import adapter as jaxmarl

    env_id = f"jaxmarl/{name}"
    if not jaxmarl.is_registered(name):
        raise _unknown(env_id)
    jaxmarl.supported_family(name)
    return jaxmarl.JaxMARLEnvironment(
        _construct(env_id, lambda **kwargs: jaxmarl.construct(name, **kwargs), env_kwargs)
    )


def _make_hunting(name: str, env_kwargs: dict[str, Any]) -> Any:
    env_id = f"hunting/{name}"
    if env_id not in HUNTING_IDS:
        raise _unknown(env_id)

    from jaxagents.environments import hunting

    variants = {"discrete": hunting.DiscreteHunting, "continuous": hunting.ContinuousHunting}
    return _construct(env_id, variants[name], env_kwargs, _PARAMS_REMEDY)


def _make_on_host(library: str, module: str, name: str, env_kwargs: dict[str, Any]) -> Any:
    adapter = importlib.import_module(f"jaxagents.environments.host.{module}")
    make = getattr(adapter, f"make_{library}")
    return _construct(f"{library}/{name}", lambda **kwargs: make(name, kwargs), env_kwargs)


def _make_of_suite(suite: str, name: str, env_kwargs: dict[str, Any]) -> Any:
    env_id = f"{suite}/{name}"
    if name not in SUITES[suite].names:
        raise _unknown(env_id)
    try:
        with SILENCE:
            adapter = importlib.import_module(f"jaxagents.environments.suites.{suite}")
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs {SUITES[suite].package}, which cannot be imported ({error}): "
            f"{pip_install(suite)}."
        ) from error
    factory = partial(getattr(adapter, f"make_{suite}"), name)
    return _construct(env_id, factory, env_kwargs)


def _make_wrapped(
    make_env: Callable[[str, dict[str, Any]], Any], name: str, env_kwargs: dict[str, Any]
) -> Any:
    own = {key: value for key, value in env_kwargs.items() if key != "wrappers"}
    wrappers = named_wrappers(env_kwargs.get("wrappers", ()))
    return wrap(make_env(name, own), wrappers)


_MAKERS_IN_JAX: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "gymnax": _make_gymnax,
    "jaxmarl": _make_jaxmarl,
    "hunting": _make_hunting,
    **{suite: partial(_make_of_suite, suite) for suite in SUITES},
}
_MAKERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "gymnasium": partial(_make_on_host, "gymnasium", "by_id"),
    "pettingzoo": partial(_make_on_host, "pettingzoo", "by_id"),
    "envpool": partial(_make_on_host, "envpool", "envpool"),
    **{library: partial(_make_wrapped, maker) for library, maker in _MAKERS_IN_JAX.items()},
}


def _construct(
    env_id: str, factory: Callable[..., Any], env_kwargs: dict[str, Any], remedy: str = ""
) -> Any:
    """Call the factory, and turn its errors about arguments into a ValueError."""
    try:
        return factory(**env_kwargs)
    except (TypeError, ValueError, LookupError, AssertionError, NotImplementedError) as error:
        if not env_kwargs:
            raise
        arguments = ", ".join(f"{name}={value!r}" for name, value in env_kwargs.items())
        cause = f"{str(error).rstrip('.')}.".replace("?.", "?")
        if isinstance(error, KeyError):  # whose text is the key alone
            cause = f"the library does not know {error}; give a value that it lists."
        raise ValueError(
            f"{env_id} cannot be constructed with {arguments}: {cause}{remedy}"
        ) from error


def _unknown(env_id: str, remedy: str = "") -> ValueError:
    suggestion = did_you_mean(env_id, registered_ids())
    return ValueError(
        f"unknown environment id {env_id!r}.{suggestion} The command `jaxagents envs` lists all."
        f"{remedy}"
    )


def _built_in_ids() -> list[str]:
    ids = [*GYMNAX_IDS, *JAXMARL_IDS, *MABRAX_IDS, *HUNTING_IDS]
    ids += [f"{suite}/{name}" for suite, found in SUITES.items() for name in found.names]
    hidden = missing_ids()
    return [each for each in ids if each not in hidden]


def ids_of_extras() -> dict[str, str]:
    """Return the ids that need an extra, and the extra of each."""
    of_suites = {
        f"{suite}/{name}": suite for suite, found in SUITES.items() for name in found.names
    }
    return dict.fromkeys(MABRAX_IDS, "brax") | of_suites


def missing_ids() -> dict[str, str]:
    """Return the ids whose extra is not installed, and the extra of each."""
    is_missing = {
        extra: importlib.util.find_spec(found.package) is None for extra, found in SUITES.items()
    }
    return {each: extra for each, extra in ids_of_extras().items() if is_missing[extra]}


def _traits(environments: Any) -> Iterator[str]:
    """List properties that affect how an agent is configured."""
    teams = environments.teams or ()
    if len(set(teams)) > 1:
        yield f"teams of {' and '.join(str(teams.count(team)) for team in sorted(set(teams)))}"
    if environments.observation.action_mask is not None:
        yield "masks"
    if environments.rewards_after_death:
        yield "rewards after death"
    if environments.has_shaped_reward:
        yield "shaped rewards"
    if environments.time_limit.is_terminal:
        yield "terminal time limit"


def _time_limit_text(params: Any, n_steps: int | None) -> str:
    limit = getattr(params, "max_steps_in_episode", n_steps)
    return "the environment's own" if limit is None else f"time limit: {limit:g} steps"


class Argument(NamedTuple):
    """A keyword argument of an environment's constructor."""

    name: str
    default: Any  # plain data
    choices: tuple[str, ...]  # names of the possible values; empty if any plain data is accepted


def arguments_of(env_id: str) -> list[Argument]:
    """List the constructor's keyword arguments whose default is plain data or a named value.

    Raises:
        ValueError: the id is unknown or not supported.
    """
    env, _ = make(env_id)
    library_env = getattr(env, "env", env)
    bases, named = (), {}
    if env_id.startswith("jaxmarl/"):
        from jaxagents.environments.jaxmarl.families import family_of

        family = family_of(library_env)
        bases, named = family.load_bases(), family.load_values()
    defaults = dict(_defaults(type(library_env), named))
    if not _accepts(env_id, defaults):
        defaults = {}
    for cls in (*type(library_env).__mro__[1:-1], *bases):
        for name, default in _defaults(cls, named):
            # Subclasses may set arguments of their base themselves.
            if name not in defaults and _accepts(env_id, {name: default}):
                defaults[name] = default
    defaults |= {
        name: value for name, value in getattr(env, "arguments", {}).items() if _is_plain(value)
    }
    return [
        Argument(name, default, tuple(sorted(named.get(name, ()))))
        for name, default in defaults.items()
    ]


def _defaults(cls: type, named: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        default = parameter.default
        names = [each for each, value in named.get(name, {}).items() if str(value) == str(default)]
        if names or default is None:
            # The library chooses in place of None. It is listed only if there are names to choose.
            if name in named:
                yield name, names[0] if names else None
        elif default is not parameter.empty and _is_plain(default):
            yield name, default


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return type(value) in (bool, int, float, str)


def _accepts(env_id: str, arguments: dict[str, Any]) -> bool:
    try:
        make(env_id, **arguments)
    except (TypeError, ValueError):
        return False
    return True
