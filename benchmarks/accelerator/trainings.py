"""Sections of trainings in turn: beside JaxMARL's recipes, of several seeds, and by options."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jaxmarl_recipe
import jaxmarl_recurrent_recipe
import scaling
from jaxmarl.environments.smax import map_name_to_scenario
from update_speed import make_ours

from accelerator.turns import Case, Side, in_turns

ROLLOUT_LENGTH = 128
_SAMPLES = 1_000_000  # of a training on a CPU, whose loops overlap from here on
_SAMPLES_OF_ACCELERATOR = 20_000_000
_FEWEST_UPDATES, _FEWEST_UPDATES_OF_ACCELERATOR = 2, 10  # the initialisation should not count
_MOST_UPDATES = 200
_UPDATES_ON_CPU = 5  # of slow environments and networks
# 64 and 256 last: the others show how it scales.
_ENVIRONMENTS = (16, 1_024, 4_096, 16_384, 64, 256)
_MEMBERS = 8
_MEMBERS_OF_ACCELERATOR = 64
_UPDATES_OF_MEMBERS = 20
SPREAD, RECURRENT = "benchmarks/peers/jaxmarl_spread.yaml", "configs/simple_spread_recurrent.yaml"
SMAX, HUNTING = "configs/smax_3m.yaml", "configs/hunting_discrete.yaml"
# As in the configuration. The recipe has no masks: units may choose what has no effect.
_SMAX_RECIPE = dataclasses.replace(
    jaxmarl_recipe.STOCK,
    env_name="HeuristicEnemySMAX",
    env_kwargs={
        "scenario": map_name_to_scenario("3m"),
        "see_enemy_actions": True,
        "walls_cause_death": True,
        "attack_mode": "closest",
    },
)


def is_on_cpu() -> bool:
    """True if jax computes on a CPU."""
    return jax.default_backend() == "cpu"


def sizes_of(
    n_envs: int, is_small: bool, n_actors: int = 3, n_steps: int = ROLLOUT_LENGTH
) -> dict[str, int]:
    """Choose the sizes of a training: those of the configurations, or tiny ones."""
    if is_small:
        return {"n_envs": 4, "n_steps": 4, "n_updates": 1}
    samples, fewest = _SAMPLES, _FEWEST_UPDATES
    if not is_on_cpu():
        samples, fewest = _SAMPLES_OF_ACCELERATOR, _FEWEST_UPDATES_OF_ACCELERATOR
    n_updates = math.ceil(samples / (n_steps * n_envs * n_actors))
    n_updates = min(max(n_updates, fewest), _MOST_UPDATES)
    return {"n_envs": n_envs, "n_steps": n_steps, "n_updates": n_updates}


def _fewer_on_cpu(sizes: dict[str, int]) -> dict[str, int]:
    """Train less on a CPU, where each of these updates takes some tenths of a second."""
    fewer = min(sizes["n_updates"], _UPDATES_ON_CPU) if is_on_cpu() else sizes["n_updates"]
    return sizes | {"n_updates": fewer}


def work_of(sizes: Mapping[str, int]) -> int:
    """Return what the time of a training grows with.

    On a CPU these are the environment steps. An accelerator does those of many environments at
    once, and its time grows with the updates.
    """
    return math.prod(sizes.values()) if is_on_cpu() else sizes["n_updates"]


def overrides_of(sizes: Mapping[str, int], n_minibatches: int = 4) -> list[str]:
    """Write sizes as options of a configuration."""
    values = {
        "n_steps": sizes["n_updates"],
        "batch_size": sizes["n_envs"],
        "rollout_length": sizes["n_steps"],
        "minibatch_size": sizes["n_envs"] // n_minibatches,
    }
    return [text for name, value in values.items() for text in (f"--agent.{name}", str(value))]


def ours(
    config: str,
    sizes: Mapping[str, int],
    *overrides: str,
    name: str = "jaxagents",
    n_minibatches: int = 4,
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Side:
    """Train our agent as a configuration says.

    Args:
        config: Path of the configuration.
        sizes: As `sizes_of` returns them.
        overrides: Further options.
        name: Name of the side.
        n_minibatches: Minibatches an epoch.
        context: Context in which it trains.
    """
    train = make_ours(config, (*overrides_of(sizes, n_minibatches), *overrides))

    def train_within(seed: int) -> Any:
        with context():
            return train(jax.random.key(seed))

    return Side(name, train_within, sizes["n_updates"], sizes["n_envs"] * sizes["n_steps"])


def recipe(
    module: Any, settings: Any, sizes: Mapping[str, int], name: str = "JaxMARL's recipe"
) -> Side:
    """Train a stand-in for a recipe of JaxMARL."""
    settings = dataclasses.replace(settings, n_steps=sizes["n_steps"])
    train = jax.jit(module.make_train(sizes["n_updates"], sizes["n_envs"], settings))
    return Side(
        name,
        lambda seed: train(jax.random.key(seed)),
        sizes["n_updates"],
        sizes["n_envs"] * sizes["n_steps"],
    )


def _case(sizes: Mapping[str, int], sides: Sequence[Callable[[], Side]], is_small: bool) -> Case:
    return in_turns(f"{sizes['n_envs']:,} environments", sides, work_of(sizes), is_small)


def by_environments(is_small: bool) -> Sequence[Case]:
    """simple_spread by the number of environments, beside the recipe."""
    cases = []
    for n_envs in _ENVIRONMENTS[:1] if is_small else _ENVIRONMENTS:
        sizes = sizes_of(n_envs, is_small)
        sides = [
            partial(ours, SPREAD, sizes),
            partial(recipe, jaxmarl_recipe, jaxmarl_recipe.STOCK, sizes),
        ]
        cases.append(_case(sizes, sides, is_small))
    return cases


def recurrent(is_small: bool) -> Sequence[Case]:
    """simple_spread with memory, beside the recurrent recipe."""
    cases = []
    for n_envs in (16,) if is_small or is_on_cpu() else (16, 1_024):
        sizes = _fewer_on_cpu(sizes_of(n_envs, is_small))
        sides = [
            partial(ours, RECURRENT, sizes, n_minibatches=2, name="jaxagents, minGRU"),
            partial(
                recipe, jaxmarl_recurrent_recipe, jaxmarl_recurrent_recipe.STOCK, sizes,
                name="JaxMARL's recurrent recipe, GRU",
            ),
            partial(
                ours, RECURRENT, sizes, "--agent.recurrent", "gru",
                n_minibatches=2, name="jaxagents, GRU",
            ),
        ]  # fmt: skip
        sides = sides[: 2 if is_small else 3]
        cases.append(_case(sizes, sides, is_small))
    return cases


def smax(is_small: bool) -> Sequence[Case]:
    """SMAX 3m beside the feed-forward recipe on it."""
    cases = []
    for n_envs in (64,) if is_small or is_on_cpu() else (64, 1_024):
        sizes = _fewer_on_cpu(sizes_of(n_envs, is_small))
        sides = [
            partial(ours, SMAX, sizes),
            partial(recipe, jaxmarl_recipe, _SMAX_RECIPE, sizes),
        ]
        cases.append(_case(sizes, sides, is_small))
    return cases


def hunting(is_small: bool) -> Sequence[Case]:
    """Hunting, a policy each; JaxMARL has no such environment."""
    cases = []
    for n_envs in (64,) if is_small or is_on_cpu() else (64, 1_024):
        sizes = sizes_of(n_envs, is_small, n_actors=2, n_steps=64)
        sides = [partial(ours, HUNTING, sizes)]
        cases.append(_case(sizes, sides, is_small))
    return cases


def by_seeds(is_small: bool) -> Sequence[Case]:
    """Several seeds of simple_spread: together, and one after the other."""
    many = () if is_on_cpu() else (_MEMBERS_OF_ACCELERATOR,)
    return [_of_members(n, is_small) for n in ((2,) if is_small else (_MEMBERS, *many))]


def _of_members(n_members: int, is_small: bool) -> Case:
    n_updates, n_envs = (1, 4) if is_small else (_UPDATES_OF_MEMBERS, 16)
    agent = scaling.make_agent(n_updates, n_envs)
    mapped = jax.vmap(agent.train, in_axes=(0, None))
    train_recipe = jax.jit(jax.vmap(jaxmarl_recipe.make_train(n_updates, n_envs)))
    as_one = jax.jit(mapped) if is_on_cpu() else None

    def keys(seed: int) -> Any:
        return jax.random.split(jax.random.key(seed), n_members)

    def one_by_one(seed: int) -> Any:
        return [agent.train(key, scaling.HYPERPARAMS) for key in keys(seed)]

    trains: dict[str, Callable[[int], Any]] = {
        "jax.vmap(agent.train)": lambda seed: mapped(keys(seed), scaling.HYPERPARAMS),
        "population: agent.train(keys)": lambda seed: agent.train(keys(seed), scaling.HYPERPARAMS),
    }
    if not is_small:
        trains["JaxMARL's recipe under jax.vmap"] = lambda seed: train_recipe(keys(seed))
        if as_one is not None:  # elsewhere jax.vmap is one batch by itself
            trains["one batch instead of threads"] = lambda seed: as_one(
                keys(seed), scaling.HYPERPARAMS
            )
        if n_members <= _MEMBERS:
            trains["one after the other"] = one_by_one
    n_steps = n_members * n_envs * ROLLOUT_LENGTH
    sides = [partial(Side, name, train, n_updates, n_steps) for name, train in trains.items()]
    return in_turns(f"{n_members} seeds", sides, n_members, is_small)


def by_options(is_small: bool) -> Sequence[Case]:
    """Dtype of the computation, precision of the products, and generator of random numbers."""
    n_envs = 64 if is_on_cpu() else 1_024
    sizes = sizes_of(n_envs, is_small)
    side = partial(ours, SPREAD, sizes)
    sides = [
        partial(side, name="as configured"),
        partial(side, "--agent.compute_dtype", "bfloat16", name="compute_dtype=bfloat16"),
        partial(side, "--agent.prng_impl", "rbg", name="prng_impl=rbg"),
        *(
            partial(
                side,
                name=f"jax_default_matmul_precision={precision}",
                context=partial(jax.default_matmul_precision, precision),
            )
            for precision in (() if is_on_cpu() else ("bfloat16", "tensorfloat32", "float32"))
        ),
    ]
    return [
        in_turns(f"{sizes['n_envs']:,} environments", sides[: 2 if is_small else None], 1, is_small)
    ]
