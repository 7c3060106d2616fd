"""What unequal actors cost: simple_tag against simple_spread, per step of one actor.

Padded observations and one policy for both teams, or a policy for each (three predators and one
prey, padded to three). The stock workload of 16 environments by 128 steps; updates take turns, and
the medians of the ratios, round by round, hold even where the machine's speed drifts.

    python benchmarks/padding.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax

import jaxagents as ja

RUNS = {
    "simple_spread, shared": ("jaxmarl/MPE_simple_spread_v3", "shared"),
    "simple_tag, shared": ("jaxmarl/MPE_simple_tag_v3", "shared"),
    "simple_tag, teams of 3 and 1": ("jaxmarl/MPE_simple_tag_v3", "team"),
}


def make_update(env_id: str, sharing: str) -> Callable[[], float]:
    """Build a function that does an update and returns microseconds per step of one actor."""
    env, env_params = ja.make(env_id)
    config = ja.AgentConfig(n_steps=1, parameter_sharing=sharing, progress_bar=False)
    agent = ja.DiscreteIPPO(env, env_params, config)
    runner = jax.block_until_ready(agent.init(jax.random.key(0), ja.HyperParameters()))
    n_actor_steps = config.steps_per_update * agent.environments.n_actors

    def update() -> float:
        started = time.perf_counter()
        jax.block_until_ready(agent.step(runner))
        return (time.perf_counter() - started) / n_actor_steps * 1e6

    update()  # compiles
    return update


def main() -> None:
    """Print medians of microseconds, and of the ratios to simple_spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    updates = {name: make_update(*run) for name, run in RUNS.items()}
    rounds = [
        {name: update() for name, update in updates.items()}
        for _ in range(parser.parse_args().rounds)
    ]
    base = next(iter(RUNS))
    for name in RUNS:
        median = statistics.median(times[name] for times in rounds)
        ratio = statistics.median(times[name] / times[base] for times in rounds)
        print(f"{name:30} {median:6.2f} us per step of one actor, {ratio:.2f} times {base}")


if __name__ == "__main__":
    main()
