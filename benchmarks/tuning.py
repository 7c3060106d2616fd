"""What each tuned form in `jaxagents.compiler` gains: updates with it and without it, in turn.

Every workload is trained by two agents at the same time: one as it is, one compiled while a tuned
form was replaced by the plain one. A ratio below 1 says that the tuned form is faster. On devices
other than a CPU, where tuned forms are off, one is compiled with the tuned form instead.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

import jaxagents as ja
from jaxagents.compiler import batch_parts, jit, random_keys, tuned_forms
from jaxagents.environments import jax_batch
from jaxagents.ippo import actor_critic, base, distributions, training_run
from jaxagents.networks import recurrent
from jaxagents.ppo import finiteness, optimization

HYPERPARAMS = ja.HyperParameters()
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


class Form(NamedTuple):
    """A function of `jaxagents.compiler` with a tuned and a plain form."""

    name: str
    home: Any  # its module
    users: tuple[Any, ...]  # the modules that call it by this name

    def replacements(self, is_tuned: bool) -> list[Any]:
        """Make the patches that replace the function by one of its forms."""
        function = getattr(self.home, self.name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            with mock.patch.object(self.home, "tunes_for_cpu", return_value=is_tuned):
                return function(*arguments, **keywords)

        return [mock.patch.object(user, self.name, call) for user in self.users]


class _MoreArrays:
    """Overlapping loops with all of XLA's passes, as a method."""

    method = jit.with_overlapping_loops(
        training_run.TrainingRun.update_repeatedly, donate_argnames=("updates",)
    )

    def __get__(self, run: Any, owner: Any = None) -> Any:
        options = {"xla_multiheap_size_constraint_per_heap": 0}
        with mock.patch.object(jit, "_OVERLAPPING", options):
            return self.method.__get__(run)


# Ways to compile, for a CPU only: what is replaced, in which module, and by what.
COMPILATIONS: dict[str, tuple[Any, str, Any]] = {
    "everything": (tuned_forms, "_is_plain", True),
    "overlapping loops": (training_run, "overlapping_pays", lambda *_: False),
    "fewer arrays": (
        training_run.TrainingRun,
        "update_repeatedly_overlapping",
        _MoreArrays(),
    ),
}
FORMS: dict[str, Form] = {
    "order of weight gradients": Form("product", tuned_forms, (tuned_forms, recurrent)),
    "sums over actions as products": Form("sum_last_axis", tuned_forms, (distributions,)),
    "gradient norm as a row": Form("global_norm", tuned_forms, (optimization,)),
    "finiteness as a row": Form("nan_unless_finite", tuned_forms, (finiteness,)),
    "unrolled Threefry": Form("to_draw", random_keys, (base, jax_batch)),
    "gradients in parts": Form("run_epoch", optimization, (base,)),
    "resets where needed": Form("apply_where", batch_parts, (jax_batch,)),
    "bootstrap values where needed": Form("apply_where", batch_parts, (actor_critic,)),
}


def names() -> list[str]:
    """Name what can be turned on and off here."""
    return [*(COMPILATIONS if jax.default_backend() == "cpu" else ()), *FORMS]


@contextlib.contextmanager
def other_form(name: str) -> Iterator[None]:
    """Turn a tuned form off on a CPU, and on elsewhere, while programs are traced and called."""
    with contextlib.ExitStack() as stack:
        if name in COMPILATIONS:
            stack.enter_context(mock.patch.object(*COMPILATIONS[name]))
        else:
            for patch in FORMS[name].replacements(is_tuned=jax.default_backend() != "cpu"):
                stack.enter_context(patch)
        yield


def make_agent(workload: Mapping[str, Any]) -> ja.DiscreteIPPO:
    """Build the agent of one of `WORKLOADS`: fields of the configuration, and the environment."""
    changes = dict(workload)
    env, env_params = ja.make(changes.pop("env", "jaxmarl/MPE_simple_spread_v3"))
    # Enough updates that loops overlap, as in a training of some length.
    config = ja.AgentConfig(n_steps=5_000, n_evals=0, progress_bar=False, **changes)
    own = type("DiscreteIPPO", (ja.DiscreteIPPO,), {})  # equal agents would share their programs
    return own(env, env_params, config)


def begin(
    agent: ja.IPPOBase,
    hyperparams: ja.HyperParameters = HYPERPARAMS,
    context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[Callable[[int], None], float]:
    """Compile a training; return a function that continues it, and the compile time.

    Args:
        agent: The agent to train; its programs must not have been compiled before.
        hyperparams: Its hyperparameters.
        context: Context in which its programs are traced and called.
    """
    run = agent.run
    with context():
        runner = agent.init(jax.random.key(0), hyperparams)
        update = run.updates_compiled_for(runner)
        updates = run.open_block(run.first_block(runner), jnp.asarray(1, jnp.int32))
        started = time.perf_counter()
        updates = jax.block_until_ready(update(updates))
    seconds = time.perf_counter() - started

    def go_on(n_updates: int) -> None:
        nonlocal updates
        with context():
            updates = update(updates._replace(n_left=jnp.asarray(n_updates, jnp.int32)))
            jax.block_until_ready(updates)

    return go_on, seconds


def seconds_of(go_on: Callable[[int], None], n_updates: int) -> float:
    """Time some updates."""
    started = time.perf_counter()
    go_on(n_updates)
    return (time.perf_counter() - started) / n_updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="*", default=names(), metavar="NAME")
    parser.add_argument("--workloads", nargs="*", default=["simple_spread"], metavar="NAME")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of a pair")
    arguments = parser.parse_args()
    print("| Form | Workload | With, ms | Without, ms | Ratio | Compile, s | Compile without, s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for workload in arguments.workloads:
        usual = begin(make_agent(WORKLOADS[workload]))
        n_updates = max(1, round(arguments.seconds / seconds_of(usual[0], 3)))
        for form in arguments.forms:
            other = begin(make_agent(WORKLOADS[workload]), context=partial(other_form, form))
            sides = [usual, other] if jax.default_backend() == "cpu" else [other, usual]
            pairs = [
                tuple(seconds_of(go_on, n_updates) for go_on, _ in sides)
                for _ in range(arguments.pairs)
            ]
            ratio = statistics.median(a / b for a, b in pairs)
            with_it, without_it = (
                1e3 * statistics.median(side) for side in zip(*pairs, strict=True)
            )
            print(
                f"| {form} | {workload} | {with_it:.1f} | {without_it:.1f} | {ratio:.2f} | "
                f"{sides[0][1]:.1f} | {sides[1][1]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
