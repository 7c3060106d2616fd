"""Epochs of gradient descent, by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.hyperparameters import OptimizerParams
from jaxagents.ppo import optimization
from jaxagents.ppo.losses import weighted_mean
from jaxagents.ppo.optimization import (
    Objective,
    clip_by_global_norm,
    clip_by_root_mean_square,
    clipped_adam,
    count_parts,
    descend,
    draw_minibatches,
    init_network,
    run_epoch,
)
from jaxagents.training.named_arrays import to_leaves
from jaxagents.types import Batch, Memory, NetworkState, Observation, Trajectory


def batch_of(target, weight):
    """Make a batch ``[time, envs, actors]`` of targets and weights; its other fields are 0."""
    target, weight = jnp.asarray(target), jnp.asarray(weight)
    zeros, no = jnp.zeros(target.shape), jnp.zeros(target.shape, bool)
    return Batch(
        observation=Observation(features=zeros[..., None]),
        critic_features=zeros[..., None],
        actor=no.astype(jnp.int32),
        begins=no,
        memory=Memory(),
        action=zeros,
        log_prob=zeros,
        trajectory=Trajectory(zeros, zeros, zeros, terminated=no, truncated=no),
        advantage=zeros,
        loss_scale=jnp.ones(()),
        value=zeros,
        value_target=target,
        weight=weight,
        value_weight=weight,
    )


def half_squared_error(parameter, minibatch):
    """A loss whose gradient is the parameter minus the mean target."""
    loss = weighted_mean(jnp.square(parameter - minibatch.value_target) / 2, minibatch.weight)
    return loss, {"loss": loss, "parameter": parameter}


def inner_product(params, minibatch):
    """A loss whose gradient is the mean of ``minibatch.observation``, whatever the parameters."""
    products = minibatch.observation.features @ params
    loss = weighted_mean(products, minibatch.weight)
    return loss, {"loss": loss}


def epoch(
    network,
    batch,
    optimizer,
    seed=0,
    n_minibatches=2,
    unit="trajectory",
    loss=half_squared_error,
):
    """Run an epoch of a single network."""
    objectives = {"critic": Objective(loss, "weight", optimizer)}
    networks, stats, norm = run_epoch(
        {"critic": network}, batch, objectives, jax.random.key(seed), n_minibatches, unit
    )
    return networks["critic"], stats, norm


def seed_that_draws(order):
    """Find a seed of an epoch whose minibatches are two environments in this order."""
    for seed in range(100):
        drawn = draw_minibatches(jax.random.key(seed), 3, 2, 2, "trajectory")
        if drawn.ravel().tolist() == order:
            return seed
    raise AssertionError(f"no seed draws {order}")


def set_part_size(monkeypatch, n_samples):
    """Compute gradients in parts of at most ``n_samples``."""
    monkeypatch.setattr(optimization, "_FEWEST_SAMPLES", 1)
    monkeypatch.setattr(optimization, "_MOST_SAMPLES", n_samples)


def assert_equal_trees(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


# Three steps of two environments: targets 2 in the first, 8 in the second, which is active once.
UNEVEN = batch_of(
    np.tile([[[2.0], [8.0]]], (3, 1, 1)),
    [[[1.0], [1.0]], [[1.0], [0.0]], [[1.0], [0.0]]],
)


@pytest.mark.parametrize(
    ("order", "parameters", "losses", "norms", "last"),
    [
        # From 0 half way to 2, then from 1 half way to 8: gradients -2 and -7.
        ([0, 1], (0.0, 1.0), (2.0, 24.5), (2.0, 7.0), 4.5),
        # From 0 half way to 8, then from 4 half way to 2: gradients -8 and 2.
        ([1, 0], (4.0, 0.0), (2.0, 32.0), (2.0, 8.0), 3.0),
    ],
)
def test_statistics_are_means_over_active_samples_each_taken_before_its_own_step(
    order, parameters, losses, norms, last
):
    optimizer = optax.sgd(0.5)
    network = init_network(jnp.zeros(()), optimizer)
    network, stats, norm = epoch(network, UNEVEN, optimizer, seed_that_draws(order))
    assert network.params == last
    # The first environment's minibatch holds three of the four active samples.
    for computed, (first, second) in (
        (stats["parameter"], parameters),
        (stats["loss"], losses),
        (norm, norms),
    ):
        np.testing.assert_allclose(computed, (3 * first + second) / 4, rtol=1e-6)


@pytest.mark.parametrize(("unit", "n_samples"), [("trajectory", 3), ("time", 2), ("step", 1)])
def test_the_gradient_of_a_minibatch_may_be_computed_in_parts(monkeypatch, unit, n_samples):
    def loss(parameter, part):
        loss, stats = half_squared_error(parameter, part)
        return loss, stats | {"size": jnp.float32(part.weight.size)}

    set_part_size(monkeypatch, n_samples)
    optimizer = optax.sgd(0.5)
    network = init_network(jnp.zeros((), jnp.bfloat16), optimizer)
    network, stats, norm = epoch(network, UNEVEN, optimizer, 0, 1, unit, loss)
    # Three targets of 2 and one of 8: 3.5 on average.
    assert (network.params, network.params.dtype, norm) == (1.75, jnp.bfloat16, 3.5)
    assert (stats["loss"], stats["size"]) == ((3 * 2.0 + 32.0) / 4, n_samples)


@pytest.mark.parametrize(
    ("n_samples", "n_units", "n_parts"),
    [
        (1_536, 4, 1),
        (4_000, 4, 1),
        (6_144, 16, 2),
        (98_304, 256, 32),
        (12_000, 6, 3),
        (9_000, 6, 3),  # two parts are too large
        (32_768, 4, 4),  # each is still too large, but a unit stays whole
        (4_736, 37, 1),  # 37 parts would be too small
        (64_576, 2_018, 2),  # and so would be 1,009: better too large
    ],
)
def test_large_minibatches_are_divided_into_as_few_small_parts_as_possible(
    n_samples, n_units, n_parts
):
    assert count_parts(n_samples, n_units) == n_parts


def test_parts_without_weight_change_nothing(monkeypatch):
    optimizer = clipped_adam(OptimizerParams(learning_rate=0.1))
    network = init_network(jnp.zeros(()), optimizer)
    batch = UNEVEN._replace(weight=UNEVEN.weight.at[:, 1].set(0.0))
    nobody = UNEVEN._replace(weight=jnp.zeros_like(UNEVEN.weight))
    whole = epoch(network, batch, optimizer, n_minibatches=1)
    assert count_parts(6, 2) == 1
    set_part_size(monkeypatch, 1)
    assert count_parts(6, 2) == 2
    assert_equal_trees(epoch(network, batch, optimizer, n_minibatches=1), whole)
    assert_equal_trees(epoch(whole[0], nobody, optimizer, n_minibatches=1)[0], whole[0])


def test_only_a_cpu_computes_gradients_in_parts(monkeypatch):
    def n_loops(platform):
        traced = jax.jit(lambda network: epoch(network, UNEVEN, optimizer)).trace(network)
        return traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.while")

    set_part_size(monkeypatch, 1)
    optimizer = optax.sgd(0.5)
    network = init_network(jnp.zeros(()), optimizer)
    whole = n_loops("cuda")
    set_part_size(monkeypatch, 100)
    assert whole == n_loops("cuda")
    set_part_size(monkeypatch, 1)
    assert n_loops("cpu") > whole


@pytest.mark.parametrize(("unit", "n_minibatches"), [("time", 3), ("step", 6), ("step", 2)])
def test_an_epoch_takes_as_many_steps_as_it_has_minibatches(unit, n_minibatches):
    optimizer = optax.sgd(0.5)
    batch = batch_of(jnp.ones((3, 2, 1)), jnp.ones((3, 2, 1)))
    network = init_network(jnp.zeros(()), optimizer)
    network, *_ = epoch(network, batch, optimizer, 0, n_minibatches, unit)
    # Every step goes half of the way that is left to 1.
    assert network.params == 1.0 - 0.5**n_minibatches


def test_epochs_with_different_keys_draw_different_minibatches():
    optimizer = optax.sgd(0.5)
    network = init_network(jnp.zeros(()), optimizer)
    run = jax.jit(jax.vmap(lambda seed: epoch(network, UNEVEN, optimizer, seed)[0].params))
    np.testing.assert_array_equal(np.unique(run(jnp.arange(20))), [3.0, 4.5])


def test_a_new_network_has_a_new_optimizer_state():
    network = init_network({"w": jnp.ones(2)}, optax.adam(0.1))
    np.testing.assert_array_equal(network.params["w"], [1.0, 1.0])
    assert_equal_trees(network.opt_state, optax.adam(0.1).init({"w": jnp.zeros(2)}))


def test_a_step_applies_the_optimizers_update():
    optimizer = optax.sgd(0.5)
    network = init_network({"w": jnp.ones(2)}, optimizer)
    stepped = descend(network, {"w": jnp.array([2.0, -4.0])}, optimizer, jnp.array(0.1))
    np.testing.assert_array_equal(stepped.params["w"], [0.0, 3.0])


def test_gradients_without_weight_change_neither_parameters_nor_optimizer_state():
    optimizer = clipped_adam(OptimizerParams(learning_rate=0.1))
    network = init_network({"w": jnp.ones(2)}, optimizer)
    # With momentum, Adam moves even where the gradient is 0.
    moving = descend(network, {"w": jnp.ones(2)}, optimizer, jnp.array(1.0))
    stopped = descend(moving, {"w": jnp.zeros(2)}, optimizer, jnp.array(0.0))
    assert_equal_trees(stopped, moving)
    went_on = descend(moving, {"w": jnp.zeros(2)}, optimizer, jnp.array(1.0))
    assert np.all(np.asarray(went_on.params["w"]) < np.asarray(moving.params["w"]))


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_an_epoch_is_the_same_without_its_minibatch_of_inactive_samples(order):
    optimizer = clipped_adam(OptimizerParams(learning_rate=0.1))
    network = init_network(jnp.zeros(()), optimizer)
    batch = UNEVEN._replace(weight=UNEVEN.weight.at[:, 1].set(0.0))
    alone = jax.tree.map(lambda leaf: leaf[:, :1] if leaf.ndim else leaf, batch)
    outcome = epoch(network, batch, optimizer, seed_that_draws(order))
    expected = epoch(network, alone, optimizer, n_minibatches=1)
    assert_equal_trees(outcome, expected)
    assert outcome[0].params > 0


def test_an_epoch_without_active_samples_changes_nothing_and_has_statistics_of_zero():
    optimizer = clipped_adam(OptimizerParams(learning_rate=0.1))
    network, *_ = epoch(init_network(jnp.zeros(()), optimizer), UNEVEN, optimizer)
    nobody = UNEVEN._replace(weight=jnp.zeros_like(UNEVEN.weight))
    after, stats, norm = epoch(network, nobody, optimizer)
    assert_equal_trees(after, network)
    assert (stats["loss"], stats["parameter"], norm) == (0.0, 0.0, 0.0)


def clipped_steps(gradients, grad_clip):
    """Take one clipped step of gradient descent per policy, each with a constant gradient."""
    gradients = jnp.asarray(gradients)
    n_policies = len(gradients)

    def update(gradient, grad_clip):
        optimizer = optax.chain(clip_by_global_norm(grad_clip), optax.sgd(1.0))
        network = init_network(jnp.zeros(2), optimizer)
        batch = batch_of(jnp.zeros((1, 1, 1)), jnp.ones((1, 1, 1)))
        batch = batch._replace(observation=Observation(features=gradient[None, None, None]))
        network, _, norm = epoch(network, batch, optimizer, 0, 1, "step", inner_product)
        return network.params, norm

    return jax.jit(jax.vmap(update))(gradients, jnp.broadcast_to(grad_clip, (n_policies,)))


@pytest.mark.parametrize("huge", [1.0, 1e6, 1e15])
def test_one_policys_huge_gradient_does_not_affect_the_clip_of_another(huge):
    # (3, 4) has norm 5 and is clipped to 1; (0.3, 0.4) is within the clip.
    params, norms = clipped_steps([[huge, 0.0], [3.0, 4.0], [0.3, 0.4]], grad_clip=1.0)
    np.testing.assert_allclose(params, [[-1.0, 0.0], [-0.6, -0.8], [-0.3, -0.4]], rtol=1e-6)
    np.testing.assert_allclose(norms, [huge, 5.0, 0.5], rtol=1e-6)


def test_each_policy_may_have_its_own_clip():
    params, _ = clipped_steps([[3.0, 4.0], [3.0, 4.0]], grad_clip=jnp.array([1.0, 2.5]))
    np.testing.assert_allclose(params, [[-0.6, -0.8], [-1.5, -2.0]], rtol=1e-6)


@pytest.mark.parametrize(("limit", "factor"), [(1.0, 0.4), (3.0, 1.0)])
def test_steps_are_clipped_by_the_root_mean_square_of_all_parameters(limit, factor):
    # Of 3, 4, 0 and 0 it is the root of 25 / 4: 2.5.
    updates = {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.zeros(2)}
    clip = clip_by_root_mean_square(limit)
    clipped, _ = clip.update(updates, clip.init(updates))
    np.testing.assert_allclose(clipped["kernel"], [[3.0 * factor, 4.0 * factor]], rtol=1e-6)
    np.testing.assert_array_equal(clipped["bias"], [0.0, 0.0])


def largest_move(optimizer):
    """Return the largest step of one parameter under 16 large gradients after 3,000 small ones."""
    gradients = jnp.concatenate([jnp.full(3_000, 1e-4), jnp.full(16, 0.1)])

    def move(state, gradient):
        update, state = optimizer.update(gradient, state)
        return state, jnp.abs(update)

    _, moves = jax.lax.scan(move, optimizer.init(jnp.zeros(())), gradients)
    return float(moves.max())


def test_no_step_is_larger_than_the_learning_rate_even_after_a_calm():
    """Adam's own steps are: the root of its second moment follows slowly."""
    params = OptimizerParams(learning_rate=0.1, eps=0.0, grad_clip=np.inf)
    np.testing.assert_allclose(largest_move(clipped_adam(params)), 0.1, rtol=1e-5)
    assert largest_move(optax.adam(0.1, eps=0.0)) > 0.5


def test_the_default_optimizer_has_the_state_of_adam():
    """Checkpoints name its parts."""
    params = {"w": jnp.ones(2)}
    before = optax.chain(clip_by_global_norm(0.5), optax.adam(0.1))
    after = clipped_adam(OptimizerParams())
    names, names_before = (
        [*to_leaves(jax.device_get(each.init(params)))] for each in (after, before)
    )
    assert names == names_before


def test_a_policy_without_active_samples_does_not_stop_another_from_learning():
    optimizer = clipped_adam(OptimizerParams(learning_rate=0.1))
    step = partial(descend, optimizer=optimizer)
    network = init_network(jnp.zeros(()), optimizer)
    networks = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), network)
    networks = jax.vmap(step)(networks, jnp.ones(2), weight=jnp.array([0.0, 5.0]))
    assert isinstance(networks, NetworkState)
    np.testing.assert_allclose(networks.params, [0.0, -0.1], rtol=1e-4)
