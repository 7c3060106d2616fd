"""The runners of an agent: how they start, how devices divide them, how they are recognised."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagents.compiler.devices import DIVIDED, DIVIDED_AFTER_FIRST, WHOLE
from jaxagents.compiler.jit import compiled_quickly
from jaxagents.compiler.platform import explaining_exhausted_memory
from jaxagents.compiler.random_keys import key_of
from jaxagents.config import AgentConfig
from jaxagents.environments.batch import EnvironmentBatch
from jaxagents.hyperparameters import HyperParameters, as_arrays, per_policy
from jaxagents.ippo.actor_critic import ActorCritic
from jaxagents.ippo.collector import Collector
from jaxagents.ippo.frozen import Frozen
from jaxagents.ippo.replay import Replay
from jaxagents.ppo.normalization import Normalizers, init_normalizers
from jaxagents.ppo.optimization import optimizer_of
from jaxagents.ppo.policy_map import PolicyMap
from jaxagents.training.saved_policy import (
    PARTS,
    Trained,
    begun_from,
    check_parts,
    is_resumable,
    limited_to,
    trained_part,
)
from jaxagents.types import PyTree, Runner, Training, leaf_name

_MOST_MISFITS = 3  # in an error message


@final
class Runners(Frozen):
    """Builds an agent's runners, and recognises them."""

    def __init__(
        self,
        config: AgentConfig,
        environments: EnvironmentBatch,
        policies: PolicyMap,
        networks: ActorCritic,
        collector: Collector,
        replay: Replay | None,
        hyperparams: HyperParameters,
    ):
        self._config = config
        self._environments = environments
        self._policies = policies
        self._networks = networks
        self._collector = collector
        self._replay = replay
        self._hyperparams = hyperparams  # any with the structure of the agent's
        self._normalizers: Normalizers = jax.eval_shape(self._initial_normalizers)
        self._shapes: dict[int | None, Runner] = {}  # by the number of members
        self._freeze()

    def begin(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, start: Trained | None = None
    ) -> Runner:
        """Build the runner with which training starts; see `build`.

        Raises:
            ValueError: frozen statistics have seen no samples.
        """
        self.check_frozen_statistics(start)
        return self.for_this_agent(self._begin(rng, hyperparams, start))

    def for_this_agent(self, runner: Runner) -> Runner:
        """Return a runner as this agent trains it, whichever agent trained it before.

        Its schedules anneal over the configured number of updates. The number is a part of the
        runner, because a program that had it as a constant would be compiled again for every other
        number. A learning rate that adapts to the KL divergence begins with the hyperparameter if
        the runner's did not adapt before. What this agent does not use is left out, so that
        checkpoints hold what it reads.

        Raises:
            ValueError: the runner holds a policy alone; or this agent normalises something else.
        """
        check_can_train(runner)
        foreign = foreign_part(
            {"normalizers": self._normalizers}, {"normalizers": runner.normalizers}
        )
        if foreign is not None:
            raise ValueError(foreign)
        learning_rate = runner.learning_rate
        if learning_rate is None or not self._adapts_rate:
            learning_rate = self._initial_rate(runner.hyperparams)
        return runner.replace(
            n_steps=jnp.asarray(self._config.n_steps, jnp.int32),
            learning_rate=learning_rate,
            replay=None if self._replay is None else runner.replay,
        )

    def _initial_normalizers(self) -> Normalizers:
        return init_normalizers(
            self._config,
            observation_shape=self._networks.actor.observation.shape,
            critic_shape=self._networks.critic.observation.shape,
            policies_shape=(self._policies.n_policies, self._policies.n_members),
        )

    @property
    def _adapts_rate(self) -> bool:
        return self._config.learning_rate_schedule == "kl"

    def _initial_rate(self, hyperparams: HyperParameters) -> Float[Array, " policies"] | None:
        if not self._adapts_rate:
            return None
        params = per_policy(hyperparams, self._policies.n_policies)
        return jnp.asarray(params.actor_optimizer_params.learning_rate)

    @compiled_quickly(optimized=False)
    def _begin(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, start: Trained | None
    ) -> Runner:
        return self.build(rng, hyperparams, start)

    def build(
        self, rng: PRNGKeyArray, hyperparams: HyperParameters, start: Trained | None = None
    ) -> Runner:
        """Build the runner with which training starts; traceable.

        Args:
            rng: Random key.
            hyperparams: Each leaf a scalar or one value per policy.
            start: Networks and normalizers to begin with, which fit the agent; what it leaves out
                is new.
        """
        config, n_policies = self._config, self._policies.n_policies
        rng = key_of(rng, config.prng_impl)
        rng, rng_actor, rng_critic, rng_env = jax.random.split(rng, 4)
        observation, env_state = self._environments.reset_part(
            rng_env, config.batch_size, config.devices
        )
        params = per_policy(hyperparams, n_policies)
        optimizer = optimizer_of(config)
        normalizers = self._initial_normalizers()
        given: dict[str, PyTree] = {}
        if start is not None:
            networks = {name: getattr(start, name) for name in PARTS}
            given = {name: each.params for name, each in networks.items() if each is not None}
            normalizers = begun_from(start, normalizers)
        actor, critic = self._networks.init(rng_actor, rng_critic, params, optimizer, **given)
        runner = Runner(
            actor=actor,
            critic=critic,
            env_state=env_state,
            observation=observation,
            memory=self._networks.initial_memory(config.batch_size, self._policies.n_actors),
            normalizers=normalizers,
            learning_rate=self._initial_rate(hyperparams),
            rng=rng,
            hyperparams=hyperparams,
            n_updates_done=jnp.zeros((), jnp.int32),
            n_steps=jnp.ones((), jnp.int32),  # see `for_this_agent`
            n_updates_skipped=jnp.zeros(n_policies, jnp.int32),
        )
        runner = self.with_current_opponents(runner)
        if self._replay is None:
            return runner
        after, transitions = jax.eval_shape(self._collector.collect, runner, rng_env)
        return runner.replace(replay=self._replay.init(transitions, after))

    def with_current_opponents(self, runner: Runner) -> Runner:
        """Pass the updated policy to the environments, which may play it as an opponent."""
        actor = self._networks.actor_of(runner)
        env_state = self._environments.after_update(runner.env_state, actor, runner.n_updates_done)
        return runner.replace(env_state=env_state)

    def shapes(self, n_members: int | None = None) -> Runner:
        """Return the shapes of the agent's runner, for checkpoints to be read into.

        Args:
            n_members: Number of members of a population; None: a single run.
        """
        if n_members not in self._shapes:  # tracing takes a fraction of a second
            build, keys = self.build, jax.random.key(0)
            if n_members is not None:
                build, keys = jax.vmap(build, in_axes=(0, None)), jax.random.split(keys, n_members)
            self._shapes[n_members] = jax.eval_shape(build, keys, as_arrays(self._hyperparams))
        return self._shapes[n_members]

    def start_from(self, runner: Runner | None, parts: Sequence[str] = PARTS) -> Trained | None:
        """Return what a runner of this or a similar agent has learnt, to start a training from.

        Args:
            runner: The runner; None: start with new networks.
            parts: Some of `PARTS`, which include their normalizers.

        Raises:
            TypeError: it is not a runner.
            ValueError: a part is unknown or there is no runner to take it from; an array of these
                parts has another shape than this agent's; or the agent freezes statistics that have
                seen no samples.
        """
        check_parts("parts", parts)
        if runner is None:
            if set(parts) != set(PARTS):
                raise ValueError(f"parts={parts!r} of what? Give a runner as start, or no parts.")
            self.check_frozen_statistics(None)
            return None
        if not isinstance(runner, Runner):
            raise TypeError(f"start is {type(runner).__name__}; pass a Runner, as restore returns.")
        if np.ndim(runner.n_updates_done):
            raise ValueError(
                f"start is a population of {len(runner.n_updates_done)}; choose a member by "
                "agent.member(runner, index)."
            )
        if self._config.shared_torso and "actor" not in parts:
            raise ValueError(
                f"parts={parts!r}, but with shared_torso=True a critic's first layers are the "
                "actor's; take both."
            )
        trained, own = (
            limited_to(trained_part(each), parts, self._config.centralized_critic)
            for each in (runner, self.shapes())
        )
        misfits = misfits_of(own._asdict(), trained._asdict())
        if misfits:
            n_more = max(0, len(misfits) - _MOST_MISFITS)
            shown = ", ".join(
                f"{name} is {given} there and {own} here"
                for name, own, given in misfits[:_MOST_MISFITS]
            )
            more = f", and {n_more} more differ" if n_more else ""
            raise ValueError(
                f"start does not fit this agent: {shown}{more}. Configure the networks, "
                "normalizers and parameter sharing that it was trained with."
            )
        self.check_frozen_statistics(trained)
        return trained

    def check_frozen_statistics(self, start: Trained | None) -> None:
        """Check that frozen statistics come from a trained runner.

        Statistics that have seen no samples would normalise everything to 0 forever.

        Raises:
            ValueError: some do not.
        """
        frozen = self._networks.frozen_normalizers - {"reward"}  # which scales by 1 at first
        own = self.shapes().normalizers if frozen else None
        for name in sorted(frozen):
            is_new = start is None or getattr(start.normalizers, name) is None
            if is_new and getattr(own, name) is not None:
                raise ValueError(
                    f"freeze={list(self._config.freeze)} freezes normalizers.{name}, which has no "
                    "samples yet; begin with a trained runner (init_from in files, start in "
                    "Python), or do not normalise."
                )

    @contextlib.contextmanager
    def explaining(self, runner: Runner, n_members: int | None = None) -> Iterator[None]:
        """If a call fails because a runner belongs to another agent, or memory is short, say so.

        Args:
            runner: The runner.
            n_members: Number of members of a population; None: the runner is of a single run.

        Raises:
            TypeError: it is not a runner.
            ValueError: it is of a population, or its arrays have other shapes than this agent's.
            MemoryError: the device's memory is exhausted.
        """
        check_is_runner(runner)
        if n_members is None:
            check_is_single(runner)
        try:
            with explaining_exhausted_memory():
                yield
        except (AttributeError, TypeError, ValueError, FlaxError) as error:
            parts = partial(_parts_of, has_optimizers=is_resumable(runner))
            if (foreign := foreign_part(parts(self.shapes(n_members)), parts(runner))) is not None:
                raise ValueError(foreign) from error
            raise


def _parts_of(runner: Runner, has_optimizers: bool) -> dict[str, PyTree]:
    """Return a runner's parameters and statistics by name, and its optimizers' states if any."""
    parts = {
        "actor": runner.actor.params,
        "critic": runner.critic.params,
        "normalizers": runner.normalizers,
    }
    if has_optimizers:
        parts["opt_state.actor"] = runner.actor.opt_state
        parts["opt_state.critic"] = runner.critic.opt_state
    return parts


def foreign_part(own: Mapping[str, PyTree], given: Mapping[str, PyTree]) -> str | None:
    """Name the first array whose shape is not the agent's, with both shapes; None: all fit."""
    for name, here, there in misfits_of(own, given)[:1]:
        return (
            f"the runner is of another agent: {name} is {there} there and {here} in this "
            "agent; build the agent of the environment and configuration that the runner was "
            "trained with."
        )
    return None


class Misfit(NamedTuple):
    """An array whose shape differs from the agent's, or that only one of them has."""

    name: str
    own: str  # the agent's shape, or "missing"
    given: str  # that of the runner


def misfits_of(own: Mapping[str, PyTree], given: Mapping[str, PyTree]) -> list[Misfit]:
    """List the arrays that do not fit; see `foreign_part`."""
    here, there = _shapes_of(own), _shapes_of(given)
    pairs = [
        Misfit(name, here.get(name, "missing"), there.get(name, "missing"))
        for name in sorted(here.keys() | there.keys())
    ]
    return [each for each in pairs if each.own != each.given]


def check_is_runner(runner: Any) -> None:
    """Raise TypeError if a value is not a runner, such as the pair that `train` returns."""
    if not isinstance(runner, Runner):
        raise TypeError(
            f"runner is {type(runner).__name__}; pass a Runner, which train returns first."
        )


def check_is_single(runner: Runner) -> None:
    """Raise ValueError if a runner is of a population."""
    if np.ndim(runner.n_updates_done):
        raise ValueError(
            f"the runner is of a population of {len(runner.n_updates_done)}; choose one by "
            "agent.member(runner, index), or restore(member=index)."
        )


def check_can_train(runner: Runner) -> None:
    """Check that a runner has the state of a training, unlike an entry of the zoo.

    Raises:
        TypeError: it is not a runner.
        ValueError: it is a policy alone.
    """
    check_is_runner(runner)
    if not is_resumable(runner):
        raise ValueError(
            "the runner is a policy without the state of its training; begin a new one from it by "
            "agent.init(rng, hyperparams, start=runner)."
        )


def _shapes_of(parts: Mapping[str, PyTree]) -> dict[str, str]:
    return {
        f"{part}.{leaf_name(path)}": str(list(leaf.shape))
        for part, tree in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def specs_of(runner: Runner) -> Any:
    """Return how devices divide a runner: they divide its environments, and each holds the rest."""
    reward = runner.normalizers.reward
    if reward is not None:
        reward = reward._replace(statistics=WHOLE, discounted_return=DIVIDED_AFTER_FIRST)
    normalizers = runner.normalizers._replace(
        observation=WHOLE, critic_features=WHOLE, value=WHOLE, reward=reward
    )
    specs: dict[str, Any] = dict.fromkeys(runner.__dataclass_fields__, WHOLE)
    specs |= dict.fromkeys(("env_state", "observation", "memory"), DIVIDED)
    return Runner(**{**specs, "normalizers": normalizers})


def specs_of_training(training: Training) -> Any:
    """Return how devices divide a run between two blocks."""
    specs: dict[str, Any] = dict.fromkeys(training._fields, WHOLE)
    return Training(**{**specs, "runner": specs_of(training.runner)})
