"""The subclasses of the tutorial "Change the algorithm" compute what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.types import Trajectory
from tests.agents import all_finite, tiny
from tests.probes import Coordination, Walk
from tests.test_tutorials import TUTORIALS, code_of


@pytest.fixture(scope="module")
def tutorial():
    """Return the names that the tutorial defines before it trains."""
    (page,) = (each for each in TUTORIALS if each.stem == "change_the_algorithm")
    names = {}
    exec(code_of(page).partition("figure, axes")[0], names)
    return names


def minibatch_of(agent, seed=0):
    """Return parameters of one policy, and a batch of its samples."""
    runner = agent.init(jax.random.key(seed), agent.default_hyperparams)

    @jax.jit
    def estimate(runner):
        after, transitions = agent.collector.collect(runner, agent.split_key(runner).rollout)
        after, valuation = agent.networks.value_rollout(after, transitions)
        hyperparams = agent.hyperparams_of(runner)
        return agent.estimate_advantages(after, transitions, valuation, hyperparams)[1]

    return jax.tree.map(
        lambda leaf: leaf[0], (runner.actor.params, runner.critic.params, estimate(runner))
    )


def test_every_subclass_has_at_most_25_lines():
    (page,) = (each for each in TUTORIALS if each.stem == "change_the_algorithm")
    sizes = [len(each.splitlines()) for each in code_of(page).split("\nclass ")[1:]]
    assert max(sizes) <= 25


def test_hyperparameters_that_an_agent_adds_must_be_given(tutorial):
    agent = tutorial["PenaltyIPPO"](Walk(), None, tiny())
    with pytest.raises(TypeError, match=r"kl_aim.*kl_coeff.*pass PenaltyParameters"):
        agent.train(jax.random.key(0), ja.HyperParameters())


@pytest.mark.slow
def test_the_penalty_is_the_kl_divergence_times_an_adapting_coefficient(tutorial):
    agent = tutorial["PenaltyIPPO"](Walk(), None, tiny())
    params, _, batch = minibatch_of(agent)
    moved = jax.tree.map(lambda leaf: leaf + 0.3, params)
    hyperparams = agent.default_hyperparams.replace(ent_coeff=0.0)
    losses = {}
    for coeff in (0.0, 2.0):
        given = hyperparams.replace(kl_coeff=coeff)
        losses[coeff], stats = agent.actor_loss(moved, batch, given)
    np.testing.assert_allclose(losses[2.0] - losses[0.0], 2.0 * stats["kl"], rtol=1e-3)

    runner = agent.init(jax.random.key(0), agent.default_hyperparams)  # kl_aim=0.008
    for kl, factor in [(0.013, 2.0), (0.008, 1.0), (0.005, 0.5)]:
        adapted = agent.adapted(runner, {"kl": jnp.array([kl])})
        np.testing.assert_allclose(adapted.hyperparams.kl_coeff, [factor])


def test_a_coefficient_that_would_change_its_shape_is_refused(tutorial):
    agent = tutorial["PenaltyIPPO"](Walk(), None, tiny())
    message = (
        r"runner's hyperparams\.kl_coeff from float32\[\] to float32\[1\].*one value per policy"
    )
    with pytest.raises(ValueError, match=message):
        agent.train(jax.random.key(0), agent.default_hyperparams.replace(kl_coeff=1.0))


@pytest.mark.slow
def test_the_auxiliary_loss_adds_the_squares_of_the_parameters(tutorial):
    agent_class = tutorial["DecayIPPO"]
    agent = agent_class(Walk(), None, tiny())
    _, params, batch = minibatch_of(agent)
    hyperparams = agent.default_hyperparams
    loss, stats = jax.jit(agent.critic_loss)(params, batch, hyperparams)
    plain, _ = jax.jit(super(agent_class, agent).critic_loss)(params, batch, hyperparams)
    assert stats["critic_loss"] == loss
    squares = sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(loss - plain, 1e-3 * squares, rtol=1e-3)
    _, metrics = agent.step(agent.init(jax.random.key(0), hyperparams))
    assert float(metrics["critic_squares"][0]) > 0


def test_the_one_step_estimate_is_the_temporal_difference(tutorial):
    agent = tutorial["OneStepIPPO"](Walk(), None, tiny())
    trajectory = Trajectory(
        reward=jnp.array([1.0, 1.0]),
        value=jnp.array([0.5, 0.25]),
        next_value=jnp.array([4.0, 8.0]),
        terminated=jnp.array([False, True]),
        truncated=jnp.array([False, False]),
    )
    advantages = agent.advantages(trajectory, ja.HyperParameters(gamma=0.5))
    np.testing.assert_array_equal(advantages, [1.0 + 0.5 * 4.0 - 0.5, 1.0 - 0.25])


@pytest.mark.slow
def test_each_actors_entropy_has_its_own_coefficient(tutorial):
    agent_class = tutorial["ExploringIPPO"]
    env = Coordination()
    agent = agent_class(env, None, tiny())
    params, _, batch = minibatch_of(agent)
    assert set(np.unique(batch.actor)) == set(range(env.n_actors))
    hyperparams = agent.default_hyperparams
    loss, stats = agent.actor_loss(params, batch, hyperparams)
    plain, _ = super(agent_class, agent).actor_loss(
        params, batch, hyperparams.replace(ent_coeff=0.0)
    )
    # The initial policy is nearly uniform: the entropy is the same for all actors.
    mean = np.mean(np.asarray(agent.coefficients)[: env.n_actors])
    np.testing.assert_allclose(plain - loss, mean * stats["entropy"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PenaltyIPPO", "DecayIPPO", "OneStepIPPO", "ExploringIPPO"])
def test_the_subclass_trains_and_is_restored(tutorial, name, tmp_path):
    agent = tutorial[name](Walk(), None, tiny(n_steps=2, checkpoint_dir=tmp_path / "run"))
    runner, _ = agent.train(jax.random.key(0), agent.default_hyperparams)
    assert all_finite(runner.actor.params)
    restored, _ = agent.restore("last")
    jax.tree.map(np.testing.assert_array_equal, restored.hyperparams, runner.hyperparams)
