"""`jax.vmap(agent.train)`: members in threads on a CPU, elsewhere as one batch."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxagents.compiler.threads import map_in_threads, vmap_by_members
from jaxagents.hyperparameters import HyperParameters
from jaxagents.ippo.driver import drive
from jaxagents.ippo.population.selection import Selection
from jaxagents.ippo.training_run import Trainee, TrainingRun
from jaxagents.training.blocks import block_sizes
from jaxagents.types import Metrics, Runner, Training

Member = tuple[PRNGKeyArray, HyperParameters]


def check_can_be_traced(agent: Trainee, runner: Runner | None, selection: Selection | None) -> None:
    """Raise ValueError if training cannot be a part of a `jax.vmap` or a compiled program."""
    if not agent.environments.can_be_vmapped:
        raise ValueError(
            "train plays environments outside of JAX, which jax.vmap and jax.jit cannot contain; "
            "call agent.train once per seed."
        )
    if agent.recorder.has_work:
        raise ValueError(
            "train writes checkpoints or calls callbacks, which jax.vmap cannot do; use an "
            "agent with checkpoint_dir=None and without callbacks there."
        )
    if runner is not None:
        raise ValueError(
            "train cannot continue a runner under jax transformations; call it outside of jax.vmap "
            "and jax.jit."
        )
    if agent.config.devices > 1:
        raise ValueError(
            f"devices={agent.config.devices} divide single runs and populations, not a jax.vmap; "
            "give train a key per member instead."
        )
    if selection is not None:
        raise ValueError(
            "train selects among the members of a population, which jax.vmap does not know; give "
            "train a key per member instead."
        )
    if agent.config.prng_impl is not None:
        raise ValueError(
            f"prng_impl={agent.config.prng_impl!r} would draw for all members of a jax.vmap by "
            "the first one's key; use an agent with prng_impl=None there."
        )


def train_under_vmap(
    run: TrainingRun, rng: PRNGKeyArray, hyperparams: HyperParameters
) -> tuple[Training, Metrics]:
    """Train from the beginning, as a member of a `jax.vmap` or a part of a compiled program."""
    config = run.agent.config
    sizes = tuple(block_sizes(0, config, config.initial_evaluation))
    as_one_program = partial(_train_as_one_program, run, sizes)
    return vmap_by_members(as_one_program, partial(_train_members, run))(rng, hyperparams)


def _train_members(run: TrainingRun, members: Sequence[Member]) -> list[tuple[Training, Metrics]]:
    """Train several members from the beginning, one per core."""
    starts = [run.first_block(run.agent.runners.begin(*member)) for member in members]
    if len(members) > 1:
        # Compile once, here, instead of in each thread.
        run.run_block(starts[0], jnp.zeros((), jnp.int32), overlaps=False)
    learners = run.learners(overlaps=len(members) == 1)

    def train(start: Training) -> tuple[Training, Metrics]:
        initial = run.agent.config.initial_evaluation
        training, (metrics,) = drive(learners, start, 0, initial, is_shown=len(members) == 1)
        return training, metrics

    if len(members) == 1:
        return [train(starts[0])]
    return map_in_threads(train, starts, run.agent.config.progress_bar)


@partial(jax.jit, static_argnames=("run", "sizes"))
def _train_as_one_program(
    run: TrainingRun, sizes: tuple[int, ...], rng: PRNGKeyArray, hyperparams: HyperParameters
) -> tuple[Training, Metrics]:
    def run_block(training: Training, now: tuple[Array, Array]) -> tuple[Training, Metrics]:
        training, (row,) = run.run_block(training, now[1], overlaps=False)
        return training, row

    shown: Any = run_block
    if run.agent.config.progress_bar:
        from jax_tqdm.scan_pbar import scan_tqdm

        shown = scan_tqdm(len(sizes), print_rate=1, desc="Training")(run_block)
    blocks = (jnp.arange(len(sizes)), jnp.asarray(sizes, jnp.int32))
    first = run.first_block(run.agent.runners.begin(rng, hyperparams))
    return jax.lax.scan(shown, first, blocks)
