"""Does population-based training find more than the settings that it begins with?

For each repetition a population begins with as many settings, drawn between the bounds, and trains
twice from the same keys: each member to the end with its own setting, and with selection. Both use
the same number of environment steps. In both cases, the member with the highest return at the last
evaluation of training plays fresh episodes.

    python benchmarks/population_based_training.py --repetitions 8
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.comparison import Group, compare, describe_comparison
from jaxagents.ippo.population.members import best_member

VARY = {
    "actor_optimizer_params.learning_rate": (1e-4, 1e-2),
    "critic_optimizer_params.learning_rate": (1e-4, 1e-2),
    "ent_coeff": (1e-4, 1e-1),
    "gamma": (0.9, 0.995),
}
N_EVALUATIONS, N_EPISODES, N_FRESH_EPISODES = 20, 64, 256


def main() -> None:
    """Print a row per repetition, and the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="jaxmarl/MPE_simple_spread_v3")
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps per member")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--every", type=int, default=1, help="evaluations between selections")
    parsed = parser.parse_args()

    env, env_params = ja.make(parsed.env)
    n_updates = parsed.steps // ja.AgentConfig(n_steps=1).steps_per_update
    config = ja.AgentConfig(
        n_steps=n_updates,
        eval_frequency=-(-n_updates // N_EVALUATIONS),
        n_evals=N_EPISODES,
        progress_bar=False,
    )
    agent = ja.DiscreteIPPO(env, env_params, config)
    results: dict[str, list[float]] = {"selection": [], "the best of fixed settings": []}
    print("| repetition | selection | best of fixed | median of fixed | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for repetition in range(parsed.repetitions):
        started = time.perf_counter()
        rule = ja.PopulationBasedTraining(VARY, every=parsed.every, seed=repetition)
        start = rule.spread(ja.HyperParameters(), parsed.members, agent.policies.n_policies)
        seeds = 1000 * repetition + jnp.arange(parsed.members)
        keys = jax.vmap(jax.random.key)(seeds)
        fresh = jax.random.key(10**6 + repetition)
        for name, selection in zip(results, (rule, None), strict=True):
            runner, metrics = agent.train(keys, start, selection=selection)
            best = agent.member(runner, best_member(metrics, "last"))
            played = agent.eval(fresh, N_FRESH_EPISODES, runner=best)["returns"]
            results[name].append(float(np.mean(played)))
        median = np.nanmedian(np.mean(metrics["returns"][:, -1], axis=(1, 2)))
        mine, fixed = (values[-1] for values in results.values())
        seconds = time.perf_counter() - started
        print(
            f"| {repetition} | {mine:.2f} | {fixed:.2f} | {median:.2f} | {seconds:.0f} |",
            flush=True,
        )
    first, second = (Group(name, np.array(values)) for name, values in results.items())
    print(describe_comparison(compare(first, second)))
    differences = first.returns - second.returns
    print(f"In pairs: selection earns {differences.mean():.2f} more on average.")


if __name__ == "__main__":
    main()
