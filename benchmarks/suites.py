"""Speed of steps of the JAX suites' environments, compared with the suites' own batches.

Both sides draw random actions alike, among the available ones, in one compiled scan, and reset
where an episode is over: here a `JaxEnvironmentBatch`, there the suite's own wrapper. All sides of
all environments take turns; medians over rounds. Needs the extras of the suites.

    python benchmarks/suites.py
    python benchmarks/suites.py jumanji/Connector-v3 navix/Navix-DoorKey-5x5-v0 --rounds 9
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxagents as ja
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.environments.factory import batch_of
from jaxagents.environments.sides.opponents import random_actions
from jaxagents.environments.time_limits import time_limit_of

IDS = (
    "jumanji/RobotWarehouse-v0",
    "jumanji/LevelBasedForaging-v0",
    "jumanji/Connector-v3",
    "pgx/connect_four",
    "craftax/Craftax-Classic-Symbolic-v1",
    "navix/Navix-DoorKey-5x5-v0",
    "xminigrid/MiniGrid-DoorKey-5x5",
    "brax/ant",
    "playground/CartpoleBalance",
)
KWARGS = {"brax/ant": {"backend": "spring"}}


class Batch(NamedTuple):
    """A suite's own batch of environments that reset themselves."""

    reset: Callable[..., Any]  # of keys, one per environment; returns the states
    step: Callable[..., Any]  # of keys, states and actions ``[envs, actors, ...]``
    reward: Callable[..., Any]  # of states
    mask: Callable[..., Any] = lambda state: None  # ``[envs, actors, actions]``


def suite_batch(env_id: str) -> Batch:
    """Return the suite's own batch."""
    suite, name = env_id.split("/")
    module: Any = importlib.import_module("mujoco_playground" if suite == "playground" else suite)
    return OF_SUITES[suite](module, name, KWARGS.get(env_id, {}))


def _jumanji(jumanji: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    from jumanji.wrappers import VmapAutoResetWrapper

    env = VmapAutoResetWrapper(jumanji.make(name, **kwargs))
    return Batch(
        env.reset,
        lambda keys, states, action: env.step(states[0], action),
        lambda states: states[1].reward,
        lambda states: states[1].observation.action_mask,
    )


def _pgx(pgx: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make(name, **kwargs)
    step = jax.vmap(auto_reset(env.step, env.init))
    return Batch(
        jax.vmap(env.init),
        lambda keys, states, action: step(states, action[:, 0], keys),
        lambda states: states.rewards,
        lambda states: jnp.repeat(states.legal_action_mask[:, None], env.num_players, axis=1),
    )


def _craftax(craftax: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=True, **kwargs)
    params = env.default_params
    reset, step = jax.vmap(env.reset, (0, None)), jax.vmap(env.step, (0, 0, 0, None))

    def first(keys: Any) -> Any:
        return (*reset(keys, params), jnp.zeros(len(keys)))

    def advance(keys: Any, states: Any, action: Any) -> Any:
        return step(keys, states[1], action[:, 0], params)[:3]

    return Batch(first, advance, lambda states: states[2])


def _navix(navix: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    env = navix.make(name, **kwargs)
    step = jax.vmap(env.step)
    return Batch(
        jax.vmap(env.reset),
        lambda keys, states, action: step(states, action[:, 0]),
        lambda states: states.reward,
    )


def _xminigrid(xminigrid: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(name, **kwargs)
    env = GymAutoResetWrapper(env)
    step = jax.vmap(env.step, (None, 0, 0))
    return Batch(
        lambda keys: jax.vmap(env.reset, (None, 0))(params, keys),
        lambda keys, states, action: step(params, states, action[:, 0]),
        lambda states: states.reward,
    )


def _brax(brax: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    from brax import envs

    def first(keys: Any) -> Any:
        return env_of(len(keys)).reset(keys[0])

    def env_of(n_envs: int) -> Any:
        return envs.create(name, auto_reset=True, batch_size=n_envs, **kwargs)

    return Batch(
        first,
        lambda keys, states, action: env_of(len(keys)).step(states, action[:, 0]),
        lambda states: states.reward,
    )


def _playground(playground: Any, name: str, kwargs: dict[str, Any]) -> Batch:
    config = playground.registry.get_default_config(name)
    config.update({"impl": "jax", **kwargs})
    env = playground.wrapper.wrap_for_brax_training(
        playground.registry.load(name, config=config), config.episode_length, config.action_repeat
    )
    return Batch(
        lambda keys: env.reset(jax.random.key_data(keys)),  # it splits keys of words
        lambda keys, states, action: env.step(states, action[:, 0]),
        lambda states: states.reward,
    )


OF_SUITES = {
    "jumanji": _jumanji,
    "pgx": _pgx,
    "craftax": _craftax,
    "navix": _navix,
    "xminigrid": _xminigrid,
    "brax": _brax,
    "playground": _playground,
}


def own_play(batch: EnvironmentBatch, n_envs: int, n_steps: int) -> tuple[Any, Any]:
    """Return compiled functions that reset, and that play random steps."""

    def advance(carry: Any, rng: jax.Array) -> Any:
        observation, state = carry
        rng_action, rng_step = jax.random.split(rng)
        action = random_actions(rng_action, batch.space, observation)
        step, state = batch.step(rng_step, state, action)
        return (step.observation, state), step.reward.mean()

    reset = jax.jit(lambda rng: batch.reset(rng, n_envs))
    return reset, jax.jit(
        lambda carry, rng: jax.lax.scan(advance, carry, jax.random.split(rng, n_steps))
    )


def suite_play(own: EnvironmentBatch, batch: Batch, n_envs: int, n_steps: int) -> tuple[Any, Any]:
    """Return the same of the suite's own batch."""
    features = jnp.zeros((n_envs, own.n_actors, 1))

    def advance(states: Any, rng: jax.Array) -> Any:
        rng_action, rng_step = jax.random.split(rng)
        observation = ja.Observation(features, batch.mask(states))
        action = random_actions(rng_action, own.space, observation)
        states = batch.step(jax.random.split(rng_step, n_envs), states, action)
        return states, batch.reward(states).mean()

    def reset(rng: jax.Array) -> Any:
        # Some suites' first states are weakly typed, and their next ones are not.
        states = batch.reset(jax.random.split(rng, n_envs))
        stepped = jax.eval_shape(lambda each: advance(each, rng)[0], states)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), states, stepped)

    return jax.jit(reset), jax.jit(
        lambda states, rng: jax.lax.scan(advance, states, jax.random.split(rng, n_steps))
    )


def both_plays(env_id: str, n_envs: int, n_steps: int) -> dict[str, tuple[Any, Any]]:
    """Return the functions of both sides."""
    env, params = ja.make(env_id, **KWARGS.get(env_id, {}))
    limit = time_limit_of(env, params, max_episode_steps=None, time_limits=None, observe_time=False)
    own = batch_of(env, params, max_episode_steps=None, time_limit=limit)
    return {
        "jaxagents": own_play(own, n_envs, n_steps),
        "suite": suite_play(own, suite_batch(env_id), n_envs, n_steps),
    }


def measure(env_ids: list[str], n_envs: int, n_steps: int, rounds: int) -> dict[Any, float]:
    """Return each side's median microseconds per step of one environment."""
    plays, states, seconds = {}, {}, {}
    for env_id in env_ids:
        for side, (reset, play) in both_plays(env_id, n_envs, n_steps).items():
            start = time.perf_counter()
            key = (env_id, side)
            plays[key], seconds[key] = play, []
            states[key], _ = play(reset(jax.random.key(0)), jax.random.key(1))
            jax.block_until_ready(states[key])
            print(f"compiled {env_id}, {side}: {time.perf_counter() - start:.0f} s", flush=True)
    for i in range(rounds):
        for key, play in plays.items():
            start = time.perf_counter()
            states[key], _ = jax.block_until_ready(play(states[key], jax.random.key(2 + i)))
            seconds[key].append(time.perf_counter() - start)
    return {key: 1e6 * statistics.median(s) / (n_envs * n_steps) for key, s in seconds.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("ids", nargs="*", default=IDS)
    parser.add_argument("--n-envs", type=int, default=64)
    parser.add_argument("--n-steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    medians = measure(args.ids, args.n_envs, args.n_steps, args.rounds)
    print("\n| environment | jaxagents, µs per step | suite, µs per step | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for env_id in args.ids:
        own, other = medians[env_id, "jaxagents"], medians[env_id, "suite"]
        print(f"| {env_id} | {own:.2f} | {other:.2f} | {own / other:.2f} |")


if __name__ == "__main__":
    main()
