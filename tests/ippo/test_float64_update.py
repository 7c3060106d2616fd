"""Whole updates against the same in float64, by numpy: see `float64_update`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.hyperparameters import as_arrays
from jaxagents.ppo.normalization import RunningStatistics
from tests.agents import opinionated_runner, tiny
from tests.ippo.float64_update import (
    Drawn,
    Fit,
    Optimizer,
    Samples,
    Update,
    ValueStatistics,
    arrays_of,
    outputs_of,
    textbook_update,
    update,
)
from tests.probes import RealWalk, Walk

# In a rollout of 6 steps the first actor dies at its third; the second is truncated at the fourth,
# and both begin anew.
DEATHS, LIMIT = (3, 100), 4
LAYERS = ja.Layers(hidden_sizes=(5, 4))
HYPERPARAMS = ja.HyperParameters(
    gamma=0.6,
    gae_lambda=0.9,
    eps_clip=0.01,
    ent_coeff=0.1,
    vf_coeff=0.7,
    actor_optimizer_params=ja.OptimizerParams(learning_rate=1e-2, grad_clip=0.1),
    critic_optimizer_params=ja.OptimizerParams(learning_rate=2e-2, eps=1e-4),
)
CASES = {
    "discrete": (ja.DiscreteIPPO, Walk(DEATHS, LIMIT), {"minibatch_size": 4}),
    "masked and independent": (
        ja.DiscreteIPPO,
        Walk(DEATHS, LIMIT, masked=True),
        {"parameter_sharing": "independent"},
    ),
    "continuous": (ja.ContinuousIPPO, RealWalk(DEATHS, LIMIT), {"minibatch_size": 4}),
    "squashed and normalised": (
        ja.ContinuousIPPO,
        RealWalk(DEATHS, LIMIT),
        {"squash": True, "normalize_observations": True, "normalize_values": True},
    ),
}
OBSERVED = {"mean": [0.3, -0.2], "variance": [0.5, 2.0]}
VALUED = {"mean": 0.5, "variance": 4.0}
STEPS_BEFORE = {"actor": 0, "critic": 2_000}


class Case:
    """An agent's update from a rollout, and the same in float64."""

    def __init__(self, agent_class: type[ja.IPPOBase], env: ja.Environment, config: ja.AgentConfig):
        self.agent = agent_class(env, None, config)
        self.runner = self._begin()
        self.rollout = self._collect()
        self.learnt, self.metrics = self.agent.update(self.runner, self.rollout)

    def _begin(self) -> ja.Runner:
        """Begin with large parameters, and a critic whose optimizer has seen zero gradients.

        The first steps of its Adam would be several times the learning rate, and are clipped.
        """
        runner = opinionated_runner(self.agent).replace(hyperparams=as_arrays(HYPERPARAMS))
        for name, count in STEPS_BEFORE.items():
            network = getattr(runner, name)
            first, (adam, *others) = network.opt_state
            adam = adam._replace(count=jnp.full_like(adam.count, count))
            network = network._replace(opt_state=(first, (adam, *others)))
            runner = runner.replace(**{name: network})
        normalizers = runner.normalizers
        if normalizers.value is not None:
            observation, value = (
                RunningStatistics(
                    weight=jnp.full(1, 30.0),
                    **{key: jnp.asarray(number, jnp.float32)[None] for key, number in each.items()},
                )
                for each in (OBSERVED, VALUED)
            )
            runner = runner.replace(
                normalizers=normalizers._replace(observation=observation, value=value)
            )
        return runner

    def _collect(self) -> ja.Rollout:
        """Collect a rollout whose rewards the critic predicts in part."""
        collect = jax.jit(self.agent.collector.collect)
        after, steps = collect(self.runner, jax.random.key(1))
        value = self._values_of_actors(self.normalised(steps.observation.features))
        noise = np.random.default_rng(0).normal(size=value.shape)
        return ja.Rollout(
            observation=steps.observation,
            action=steps.action,
            log_prob=steps.log_prob,
            reward=np.float32(value + 0.2 * noise),
            terminated=steps.terminated,
            truncated=steps.truncated,
            last_observation=after.observation,
            final_observation=steps.final_observation,
            active=steps.active,
        )

    def _values_of_actors(self, features: np.ndarray) -> np.ndarray:
        n_policies, values = self.agent.policies.n_policies, []
        for actor in range(features.shape[2]):
            critic = arrays_of(self.runner.critic.params, actor % n_policies)
            values.append(outputs_of(critic, features[:, :, actor])[0][..., 0])
        value = np.stack(values, axis=-1)
        if self.runner.normalizers.value is None:
            return value
        return VALUED["mean"] + np.sqrt(VALUED["variance"]) * value

    def networks(self, policy: int) -> dict[str, Optimizer]:
        """Return one policy's networks before the update."""
        networks = {}
        for name in ("actor", "critic"):
            network = getattr(self.runner, name)
            adam = network.opt_state[1][0]
            moments = (arrays_of(moment, policy) for moment in (adam.mu, adam.nu))
            arrays = arrays_of(network.params, policy)
            networks[name] = Optimizer(arrays, *moments, n_steps=int(adam.count[policy]))
        return networks

    @property
    def hyperparams(self) -> ja.HyperParameters:
        """The hyperparameters as floats."""
        return jax.tree.map(float, self.runner.hyperparams)

    def expected(self, policy: int) -> Update:
        """Update one policy in float64."""
        value = self.runner.normalizers.value
        if value is not None:
            value = ValueStatistics(*(float(leaf[policy]) for leaf in value))
        return update(
            **self.networks(policy),
            samples=self.samples(policy),
            hyperparams=self.hyperparams,
            minibatches=self.minibatches(policy),
            value_statistics=value,
        )

    def metrics_of(self, expected: Update) -> dict[str, float]:
        """Return the expected metrics by the agent's names."""
        return {
            f"{network}_{key}" if key == "gradient_norm" else key: number
            for network, fit in (("actor", expected.actor), ("critic", expected.critic))
            for key, number in fit.metrics.items()
        }

    def samples(self, policy: int) -> Samples:
        """Return the experience of one policy's actors."""
        of_policy = [policy] if self.agent.policies.n_policies > 1 else slice(None)
        rollout = self.rollout
        observed, last, final = (
            self.normalised(each.features)
            for each in (rollout.observation, rollout.last_observation, rollout.final_observation)
        )
        truncated = np.asarray(rollout.truncated)
        following = np.where(truncated[..., None], final, [*observed[1:], last])
        mask = rollout.observation.action_mask

        def take(leaf: Any) -> np.ndarray:
            return np.asarray(leaf)[:, :, of_policy]

        return Samples(
            features=take(observed),
            next_features=take(following),
            mask=None if mask is None else take(mask),
            action=take(rollout.action),
            reward=take(np.float64(rollout.reward)),
            terminated=take(rollout.terminated),
            truncated=take(truncated),
            active=take(rollout.active),
        )

    def normalised(self, features: Any) -> np.ndarray:
        features = np.asarray(features, np.float64)
        if self.runner.normalizers.observation is None:
            return features
        mean, std = np.array(OBSERVED["mean"]), np.sqrt(OBSERVED["variance"])
        return (features - mean) / std

    def assert_learnt(self, expected: dict[str, Fit], policy: int) -> None:
        """Compare one policy's parameters after the update with those in float64."""
        for name, fit in expected.items():
            learnt = arrays_of(getattr(self.learnt, name).params, policy)
            for array, its_expected in zip(learnt, fit.network.arrays, strict=True):
                np.testing.assert_allclose(array, its_expected, rtol=0, atol=1e-5)

    def minibatches(self, policy: int) -> dict[str, Drawn]:
        """Draw the environments of each epoch's minibatches from the update's own keys."""
        config, keys = self.agent.config, self.agent.split_key(self.runner)
        n_minibatches = config.batch_size // config.minibatch_size
        epochs = {"actor": config.actor_epochs, "critic": config.critic_epochs}
        drawn: dict[str, Drawn] = {"actor": [], "critic": []}
        for name, n_epochs in epochs.items():
            rng = getattr(keys, name)[policy]
            for _ in range(n_epochs):
                rng, rng_epoch = jax.random.split(rng)
                order = np.asarray(jax.random.permutation(rng_epoch, config.batch_size))
                drawn[name].append(np.split(order, n_minibatches))
        return drawn


@pytest.mark.parametrize(
    "name",
    [
        each if each == "squashed and normalised" else pytest.param(each, marks=pytest.mark.slow)
        for each in CASES
    ],
)
def test_an_update_equals_the_same_in_float64(name):
    agent_class, env, changes = CASES[name]
    case = Case(agent_class, env, tiny(actor_layers=LAYERS, critic_layers=LAYERS, **changes))
    ends = (case.rollout.terminated, case.rollout.truncated, ~case.rollout.active)
    assert all(np.any(each) for each in ends)
    for policy in range(case.agent.policies.n_policies):
        expected = case.expected(policy)
        assert_every_rule_is_at_work(expected)
        case.assert_learnt({"actor": expected.actor, "critic": expected.critic}, policy)
        for key, number in case.metrics_of(expected).items():
            np.testing.assert_allclose(case.metrics[key][policy], number, rtol=1e-4, err_msg=key)
        if expected.value_statistics is not None:
            statistics = [leaf[policy] for leaf in case.learnt.normalizers.value]
            np.testing.assert_allclose(statistics, expected.value_statistics, rtol=1e-5)


def assert_every_rule_is_at_work(expected: Update) -> None:
    """The scale of the loss, and the clips of ratios, gradients and the critic's steps."""
    assert expected.scale < 1.0
    assert 0.0 < expected.actor.metrics["clip_fraction"] < 1.0
    assert max(expected.actor.norms) > HYPERPARAMS.actor_optimizer_params.grad_clip
    assert max(expected.critic.norms) > HYPERPARAMS.critic_optimizer_params.grad_clip
    assert max(expected.actor.sizes) < 1.0 < max(expected.critic.sizes)


@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("squashed", "independent"),
        pytest.param("discrete", "shared", marks=pytest.mark.slow),
        pytest.param("masked", "independent", marks=pytest.mark.slow),
    ],
)
def test_a_textbook_update_equals_the_same_in_float64(name, sharing):
    env = (RealWalk if name == "squashed" else Walk)(DEATHS, LIMIT, masked=name == "masked")
    config, _ = ja.textbook_ppo(
        n_steps=1,
        batch_size=4,
        rollout_length=6,
        n_minibatches=2,
        parameter_sharing=sharing,
        squash=name == "squashed",
        actor_layers=LAYERS,
        critic_layers=LAYERS,
        progress_bar=False,
    )
    case = Case(ja.ContinuousIPPO if config.squash else ja.DiscreteIPPO, env, config)
    epochs, n_steps = config.actor_epochs, config.rollout_length * config.batch_size
    for policy in range(case.agent.policies.n_policies):
        rng, minibatches = case.agent.split_key(case.runner).actor[policy], []
        for _ in range(epochs):
            rng, rng_epoch = jax.random.split(rng)
            order = np.asarray(jax.random.permutation(rng_epoch, n_steps))
            minibatches.append(np.split(order, config.n_minibatches))
        samples, networks = case.samples(policy), case.networks(policy)
        expected = textbook_update(
            **networks, samples=samples, hyperparams=case.hyperparams, minibatches=minibatches
        )
        case.assert_learnt(expected, policy)
        norms, sizes = expected["critic"].norms, expected["critic"].sizes
        assert min(norms) > HYPERPARAMS.actor_optimizer_params.grad_clip
        assert max(sizes) > 1.0  # larger than the learning rate, which only the default clips
