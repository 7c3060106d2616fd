"""What our adapter adds to an environment's own `step_env`: keys, resets, truncation and stacking.

128 steps of a batch of environments, ours and the library's in turn; medians of 20 rounds. The
library's keep stepping beyond the ends of their episodes, without any reset.

    python benchmarks/adapter.py
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

import jaxagents as ja
from jaxagents.environments.jax_batch import JaxEnvironmentBatch

ENV_IDS = ("jaxmarl/MPE_simple_spread_v3", "jaxmarl/HeuristicEnemySMAX", "gymnax/CartPole-v1")
N_ENVS = (16, 256)
N_STEPS = 128
N_ROUNDS = 20


def ours(env: Any, params: Any, n_envs: int) -> Callable[[jax.Array], Any]:
    """Compile steps as a rollout takes them."""
    environments = JaxEnvironmentBatch(env, params)
    actions = jax.random.randint(
        jax.random.key(0), (N_STEPS, n_envs, environments.n_actors), 0, environments.space.n
    )

    def run(rng: jax.Array) -> Any:
        def step(state: Any, now: Any) -> Any:
            time_step, state = environments.step(now[0], state, now[1])
            return state, time_step._replace(info={}, final_state=None)

        _, state = environments.reset(rng, n_envs)
        return jax.lax.scan(step, state, (jax.random.split(rng, N_STEPS), actions))

    return jax.jit(run)


def bare(env: Any, params: Any, n_envs: int) -> Callable[[jax.Array], Any]:
    """Compile steps as the library offers them."""
    library = env.env
    agents = getattr(library, "agents", None)
    n_actors = len(agents) if agents else 1
    n_actions = env.action_space(params).n
    shape = (n_actors, N_STEPS, n_envs)
    actions = jax.random.randint(jax.random.key(0), shape, 0, n_actions)
    actions = dict(zip(agents, actions, strict=True)) if agents else actions[0]

    def step_env(rng: jax.Array, state: Any, action: Any) -> Any:
        rest = (action,) if agents else (action, params)
        observation, state, *others = library.step_env(rng, state, *rest)
        return state, (observation, others[:-1])

    def run(rng: jax.Array) -> Any:
        def step(state: Any, now: Any) -> Any:
            return jax.vmap(step_env)(jax.random.split(now[0], n_envs), state, now[1])

        rest = () if agents else (params,)
        rngs = jax.random.split(rng, n_envs)
        _, state = jax.vmap(lambda rng: library.reset(rng, *rest))(rngs)
        return jax.lax.scan(step, state, (jax.random.split(rng, N_STEPS), actions))

    return jax.jit(run)


def milliseconds(run: Callable[[jax.Array], Any], seed: int) -> float:
    """Time one run."""
    rng = jax.random.key(seed)
    started = time.perf_counter()
    jax.block_until_ready(run(rng))
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    """Print a row for each environment and size."""
    for env_id in ENV_IDS:
        env, params = ja.make(env_id)
        for n_envs in N_ENVS:
            sides = [make(env, params, n_envs) for make in (ours, bare)]
            for run in sides:
                milliseconds(run, 0)  # compiles
            rounds = [[milliseconds(run, seed) for run in sides] for seed in range(N_ROUNDS)]
            times = [statistics.median(each) for each in zip(*rounds, strict=True)]
            ratio = statistics.median(mine / theirs for mine, theirs in rounds)
            print(
                f"{env_id}, {n_envs:,} environments: {times[0]:.2f} ms, bare {times[1]:.2f} ms, "
                f"ratio {ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
