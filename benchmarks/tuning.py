"""What each tuned form in `jaxagents.compiler` gains: updates with it and without it, in turn.

Every workload is trained by two agents at the same time: one as it is, one compiled while a tuned
form was replaced by the plain one. A ratio below 1 says that the tuned form is faster.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax

import jaxagents as ja
from jaxagents import hyperparameters
from jaxagents.compiler import batch_parts, jit, matrix_products, reductions
from jaxagents.environments import batch
from jaxagents.ippo import actor_critic, base, distributions, training_run
from jaxagents.ppo import finiteness, optimization
from jaxagents.ppo import statistics as ppo_statistics

WORKLOADS: dict[str, dict[str, Any]] = {
    "simple_spread": {},
    "simple_spread, independent": {"parameter_sharing": "independent"},
    "simple_spread, 256 environments": {"batch_size": 256, "minibatch_size": 64},
    "simple_spread, minGRU": {"recurrent": "mingru"},
    "CartPole": {"env": "gymnax/CartPole-v1"},
    "CartPole, 256 environments": {
        "env": "gymnax/CartPole-v1",
        "batch_size": 256,
        "minibatch_size": 64,
    },
}


def _identity(rng: Any) -> Any:
    return rng


def _plain_sums(values: Any, weight: Any) -> Any:
    return jnp.stack([jnp.sum(weight * each) for each in values])


def _plain_select(needed: Any, function: Any, samples: Any, others: Any, smallest_part: int) -> Any:
    with mock.patch.object(batch_parts, "is_plain", return_value=True):
        return batch_parts.apply_where(needed, function, samples, others, smallest_part)


def _plain_finiteness(tree: Any) -> Any:
    with mock.patch.object(reductions, "is_plain", return_value=True):
        return reductions.nan_unless_finite(tree)


def _overlapping_with_more_arrays() -> Any:
    options = {"xla_multiheap_size_constraint_per_heap": 0}
    with mock.patch.object(jit, "_OVERLAPPING", options):
        return jit.with_overlapping_loops(
            training_run.TrainingRun.update_repeatedly,
            static_argnames=("self",),
            donate_argnames=("updates",),
        )


# By name: what is replaced, in which module, and by what.
FORMS: dict[str, list[tuple[Any, str, Any]]] = {
    "overlapping loops": [(training_run, "overlapping_pays", lambda *_: False)],
    "fewer arrays": [
        (training_run, "_update_repeatedly_overlapping", _overlapping_with_more_arrays())
    ],
    "order of weight gradients": [(matrix_products, "is_plain", lambda: True)],
    "sums over actions as products": [
        (distributions, "sum_last_axis", lambda values: jnp.sum(values, axis=-1))
    ],
    "statistics of the loss as a product": [(ppo_statistics, "weighted_sums", _plain_sums)],
    "gradient norm as a row": [
        (optimization, "global_norm", optax.tree.norm),
        (hyperparameters, "global_norm", optax.tree.norm),
    ],
    "finiteness as a row": [(finiteness, "nan_unless_finite", _plain_finiteness)],
    "unrolled Threefry": [(base, "to_draw", _identity), (batch, "to_draw", _identity)],
    "gradients in parts": [(batch_parts, "count_parts", lambda *_: 1)],
    "resets where needed": [(batch, "apply_where", _plain_select)],
    "bootstrap values where needed": [(actor_critic, "apply_where", _plain_select)],
}


@contextlib.contextmanager
def without(form: str) -> Iterator[None]:
    """Replace a tuned form by the plain one while programs are traced."""
    with contextlib.ExitStack() as stack:
        for module, name, plain in FORMS[form]:
            stack.enter_context(mock.patch.object(module, name, plain))
        yield


def begin(workload: str) -> tuple[Callable[[int], None], float]:
    """Compile a training; return what goes on by so many updates, and the compile time."""
    changes = dict(WORKLOADS[workload])
    env, env_params = ja.make(changes.pop("env", "jaxmarl/MPE_simple_spread_v3"))
    # So many updates that loops overlap, as in a training of some length.
    config = ja.AgentConfig(n_steps=5_000, n_evals=0, progress_bar=False, **changes)
    agent = ja.DiscreteIPPO(env, env_params, config)
    runner = agent.init(jax.random.key(0), ja.HyperParameters())
    run = agent._run
    update = run.updates_compiled_for(runner)
    updates = run.open_block(run.first_block(runner), jnp.asarray(1, jnp.int32))
    started = time.perf_counter()
    updates = jax.block_until_ready(update(run, updates))
    seconds = time.perf_counter() - started

    def go_on(n_updates: int) -> None:
        nonlocal updates
        updates = update(run, updates._replace(n_left=jnp.asarray(n_updates, jnp.int32)))
        jax.block_until_ready(updates)

    return go_on, seconds


def seconds_of(go_on: Callable[[int], None], n_updates: int) -> float:
    """Time some updates."""
    started = time.perf_counter()
    go_on(n_updates)
    return (time.perf_counter() - started) / n_updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="*", default=list(FORMS), metavar="NAME")
    parser.add_argument("--workloads", nargs="*", default=["simple_spread"], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a pair")
    arguments = parser.parse_args()
    print("| Form | Workload | With, ms | Without, ms | Ratio | Compile, s | Compile without, s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for workload in arguments.workloads:
        tuned, compile_tuned = begin(workload)
        n_updates = max(1, round(arguments.seconds / seconds_of(tuned, 3)))
        for form in arguments.forms:
            with without(form):
                plain, compile_plain = begin(workload)
            pairs = [
                (seconds_of(tuned, n_updates), seconds_of(plain, n_updates))
                for _ in range(arguments.pairs)
            ]
            ratio = statistics.median(a / b for a, b in pairs)
            with_it, without_it = (
                1e3 * statistics.median(side) for side in zip(*pairs, strict=True)
            )
            print(
                f"| {form} | {workload} | {with_it:.1f} | {without_it:.1f} | {ratio:.2f} | "
                f"{compile_tuned:.1f} | {compile_plain:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
