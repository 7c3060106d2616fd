"""`jax.vmap(agent.train)`: members in threads on a CPU, elsewhere as one batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxagents.compiler.threads import map_in_threads, vmap_by_members
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.hyperparameters import HyperParameters
from jaxagents.training.blocks import block_sizes
from jaxagents.training.recorder import Recorder
from jaxagents.types import Metrics, Runner, Training, Updates

Member = tuple[PRNGKeyArray, HyperParameters]
Update = Callable[..., Updates]


class Trainable(Protocol):
    """The parts of an agent that training under `jax.vmap` uses; see `IPPOBase`."""

    config: AgentConfig
    environments: EnvironmentBatch
    _recorder: Recorder
    _update_repeatedly: Any

    def _begin(self, rng: PRNGKeyArray, hyperparams: HyperParameters) -> Runner: ...
    def _first_block(self, runner: Runner) -> Training: ...
    def _updates_compiled_for(self, runner: Runner) -> Update: ...
    def _run_block(
        self, training: Training, n_updates: Int[Array, ""], update: Update
    ) -> tuple[Training, Metrics]: ...
    def _run_blocks(
        self, runner: Runner, sizes: Sequence[int], update: Update, is_shown: bool = False
    ) -> tuple[Training, Metrics]: ...


def check_can_be_traced(agent: Trainable, runner: Runner | None) -> None:
    """Raise ValueError if training cannot be a part of a `jax.vmap` or a compiled program."""
    if not agent.environments.can_be_vmapped:
        raise ValueError(
            "train plays environments outside of JAX, which jax.vmap and jax.jit cannot contain; "
            "call agent.train once per seed."
        )
    if agent._recorder.has_work:
        raise ValueError(
            "train writes checkpoints or calls callbacks, which jax.vmap cannot do; use an "
            "agent with checkpoint_dir=None and without callbacks there."
        )
    if runner is not None:
        raise ValueError(
            "train cannot continue a runner under jax transformations; call it outside of jax.vmap "
            "and jax.jit."
        )
    if agent.config.prng_impl is not None:
        raise ValueError(
            f"prng_impl={agent.config.prng_impl!r} would draw for all members of a jax.vmap by "
            "the first one's key; use an agent with prng_impl=None there."
        )


def train_under_vmap(
    agent: Trainable, rng: PRNGKeyArray, hyperparams: HyperParameters
) -> tuple[Training, Metrics]:
    """Train from the beginning, as a member of a `jax.vmap` or a part of a compiled program."""
    sizes = tuple(block_sizes(0, agent.config, agent.config.initial_evaluation))
    as_one_program = partial(_train_as_one_program, agent, sizes)
    return vmap_by_members(as_one_program, partial(_train_members, agent, sizes))(rng, hyperparams)


def _train_members(
    agent: Trainable, sizes: Sequence[int], members: Sequence[Member]
) -> list[tuple[Training, Metrics]]:
    """Train several members from the beginning, one per core."""
    runners = [agent._begin(*member) for member in members]
    if len(members) == 1:
        update = agent._updates_compiled_for(runners[0])
        return [agent._run_blocks(runners[0], sizes, update, agent.config.progress_bar)]
    update = type(agent)._update_repeatedly
    # Compile once, here, instead of in each thread.
    agent._run_blocks(runners[0], [0], update)
    train = partial(agent._run_blocks, sizes=sizes, update=update)
    return map_in_threads(train, runners, agent.config.progress_bar)


@partial(jax.jit, static_argnames=("agent", "sizes"))
def _train_as_one_program(
    agent: Trainable, sizes: tuple[int, ...], rng: PRNGKeyArray, hyperparams: HyperParameters
) -> tuple[Training, Metrics]:
    def run_block(training: Training, now: tuple[Array, Array]) -> tuple[Training, Metrics]:
        return agent._run_block(training, now[1], type(agent)._update_repeatedly)

    shown: Any = run_block
    if agent.config.progress_bar:
        from jax_tqdm.scan_pbar import scan_tqdm

        shown = scan_tqdm(len(sizes), print_rate=1, desc="Training")(run_block)
    blocks = (jnp.arange(len(sizes)), jnp.asarray(sizes, jnp.int32))
    return jax.lax.scan(shown, agent._first_block(agent._begin(rng, hyperparams)), blocks)
