"""Cost of an update as environments, actors or seeds grow, on JaxMARL's simple_spread.

Each size trains by itself, the sides in turn; medians of three rounds. Minibatches grow with the
environments: there are four an epoch throughout, as in the stock workload.

    python benchmarks/scaling.py envs        beside the stand-in for JaxMARL's recipe
    python benchmarks/scaling.py actors      and as many landmarks; 16 environments
    python benchmarks/scaling.py seeds       under jax.vmap, beside one after the other
    python benchmarks/scaling.py policies    one for all actors, beside one for each
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxmarl_recipe

import jaxagents as ja

ENV_ID = "jaxmarl/MPE_simple_spread_v3"
SIZES = {
    "envs": (16, 64, 256, 1024, 4096),
    "actors": (1, 2, 4, 8, 16, 32, 64),
    "seeds": (1, 2, 4, 8, 16, 32),
    "policies": (16, 64, 256),
}
N_ROUNDS = 3
N_SAMPLES = 2_500_000  # of each training: enough for actors and critics to learn at the same time
FEWEST_UPDATES = 4
HYPERPARAMS = ja.HyperParameters()

Sides = dict[str, Callable[[], Any]]


def make_agent(
    n_updates: int, n_envs: int = 16, n_actors: int = 3, sharing: str = "shared"
) -> ja.DiscreteIPPO:
    """Make an agent that is not evaluated."""
    env, env_params = ja.make(ENV_ID, num_agents=n_actors, num_landmarks=n_actors)
    config = ja.AgentConfig(
        n_steps=n_updates,
        batch_size=n_envs,
        minibatch_size=n_envs // 4,
        n_evals=0,
        parameter_sharing=sharing,
        progress_bar=False,
    )
    return ja.DiscreteIPPO(env, env_params, config)


def by_envs(n_envs: int, n_updates: int) -> Sides:
    """Train as many environments, beside the recipe."""
    agent = make_agent(n_updates, n_envs=n_envs)
    recipe = jax.jit(jaxmarl_recipe.make_train(n_updates, n_envs))
    return {"jaxagents": training(agent), "recipe": lambda: recipe(jax.random.key(0))}


def by_actors(n_actors: int, n_updates: int) -> Sides:
    """Train as many actors."""
    return {"jaxagents": training(make_agent(n_updates, n_actors=n_actors))}


def by_seeds(n_seeds: int, n_updates: int) -> Sides:
    """Train as many seeds, under `jax.vmap` and one after the other."""
    agent = make_agent(n_updates)
    rngs = jax.random.split(jax.random.key(0), n_seeds)
    return {
        "vmap": lambda: jax.vmap(agent.train, in_axes=(0, None))(rngs, HYPERPARAMS),
        "in turn": lambda: [agent.train(rng, HYPERPARAMS) for rng in rngs],
    }


def by_policies(n_envs: int, n_updates: int) -> Sides:
    """Train a policy for each actor, beside one for all."""
    return {
        sharing: training(make_agent(n_updates, n_envs, sharing=sharing))
        for sharing in ("independent", "shared")
    }


SIDES = {"envs": by_envs, "actors": by_actors, "seeds": by_seeds, "policies": by_policies}


def training(agent: ja.DiscreteIPPO) -> Callable[[], Any]:
    """Make a function that trains an agent."""
    return lambda: agent.train(jax.random.key(0), HYPERPARAMS)


def seconds(train: Callable[[], Any]) -> float:
    """Time a training."""
    started = time.perf_counter()
    jax.block_until_ready(train())
    return time.perf_counter() - started


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=SIDES)
    parser.add_argument("--sizes", type=int, nargs="+")
    args = parser.parse_args()
    for size in args.sizes or SIZES[args.what]:
        n_envs = size if args.what in ("envs", "policies") else 16
        n_actors = size if args.what == "actors" else 3
        n_members = size if args.what == "seeds" else 1
        n_updates = max(FEWEST_UPDATES, N_SAMPLES // (128 * n_envs * n_actors))
        sides = SIDES[args.what](size, n_updates)
        for train in sides.values():
            seconds(train)  # compiles
        rounds = [[seconds(train) for train in sides.values()] for _ in range(N_ROUNDS)]
        for name, times in zip(sides, zip(*rounds, strict=True), strict=True):
            per_update = statistics.median(times) / n_updates
            n_steps = 128 * n_envs * n_members
            print(
                f"{args.what} {size:5} {name:12} {per_update * 1e3:9.2f} ms per update, "
                f"{n_steps / per_update:9,.0f} environment steps/s",
                flush=True,
            )
        if len(sides) == 2:
            ratios = [theirs / ours for ours, theirs in rounds]
            print(
                f"{'':11} times of {' / '.join(reversed(sides))}: {statistics.median(ratios):.2f}"
            )


if __name__ == "__main__":
    main()
