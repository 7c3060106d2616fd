"""Which quantity is named when one is NaN or infinite, and which policies are undone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo.finiteness import (
    QUANTITIES,
    NonFiniteError,
    keep_finite_policies,
    raise_nonfinite,
    residues_of,
)
from jaxagents.ppo.normalization import Normalizers
from jaxagents.ppo.statistics import ValueStats
from jaxagents.types import Batch, Memory, NetworkState, Observation, Runner, Trajectory

ONE = jnp.ones((2, 1, 1))  # two steps of one actor


def found(value_weight=ONE, explained=1.0, **changed):
    """Return the flags of an update in which everything is 1 except for the changed quantities."""

    def of(name):
        return changed.get(name, ONE)

    batch = Batch(
        observation=Observation(of("observations")[..., None]),
        critic_features=ONE,
        actor=jnp.zeros(ONE.shape, jnp.int32),
        begins=jnp.zeros(ONE.shape, bool),
        memory=Memory(),
        action=ONE,
        log_prob=ONE,
        trajectory=Trajectory(
            of("rewards"), ONE, ONE, jnp.zeros_like(ONE, bool), jnp.zeros_like(ONE, bool)
        ),
        advantage=ONE,
        loss_scale=jnp.ones(()),
        value=ONE,
        value_target=of("values"),
        weight=ONE,
        value_weight=value_weight,
    )
    actor, critic = (
        NetworkState({"kernel": of(f"{network}'s parameters")}, ())
        for network in ("actor", "critic")
    )
    metrics = {
        f"{network}_{key}": of(f"{network}'s {name}").sum()
        for network in ("actor", "critic")
        for key, name in (("loss", "loss"), ("gradient_norm", "gradient"))
    }
    metrics |= dict.fromkeys(ValueStats._fields, jnp.ones(()))
    metrics["explained_variance"] = jnp.asarray(explained)
    residues = residues_of(batch, actor, critic, of("running statistics"), metrics)
    return ~np.isfinite(residues)


def test_nothing_is_found_in_a_finite_update():
    assert not found().any()
    assert len(found()) == len(QUANTITIES)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", QUANTITIES)
def test_each_quantity_is_found_by_its_own_name(name, value):
    flags = found(**{name: ONE.at[1].set(value)})
    assert [QUANTITIES[i] for i in np.flatnonzero(flags)] == [name]
    with pytest.raises(NonFiniteError) as error:
        raise_nonfinite(np.stack([np.zeros_like(flags), flags]), update=7)
    assert str(error.value).startswith(f"update 7 has NaN or infinity in the {name} of policy 1; ")
    assert "\n" not in str(error.value)


def test_values_with_nan_as_explained_variance_are_found():
    assert [QUANTITIES[i] for i in np.flatnonzero(found(explained=np.nan))] == ["values"]


@pytest.mark.parametrize("name", ["rewards", "values"])
def test_samples_with_zero_weight_may_be_nan(name):
    assert not found(value_weight=ONE.at[1].set(0.0), **{name: ONE.at[1].set(np.nan)}).any()


@pytest.mark.parametrize(
    ("of_policy_2", "message"),
    [
        (5, r"actor's loss of policy 0 \(and in policy 2\); lower the learning rate"),
        (1, r"observations of policy 2 \(and in policy 0\); the environment returned it"),
    ],
)
def test_the_error_names_the_quantity_on_which_the_others_depend(of_policy_2, message):
    flags = np.zeros((3, len(QUANTITIES)), bool)
    flags[0, [4, 6]] = flags[2, of_policy_2] = True
    with pytest.raises(NonFiniteError, match=message):
        raise_nonfinite(flags, update=1)


def test_no_error_is_raised_if_nothing_was_found():
    raise_nonfinite(np.zeros((2, len(QUANTITIES)), bool), update=1)


def test_policies_with_a_nan_are_undone_and_counted_and_others_kept():
    def runner(value):
        numbers = jnp.full((2, 3), value)
        return Runner(
            actor=NetworkState({"kernel": numbers}, numbers),
            critic=NetworkState({"kernel": numbers}, numbers),
            env_state=value,
            observation=value,
            memory=value,
            normalizers=Normalizers(value=numbers),
            learning_rate=jnp.full(2, value),
            rng=value,
            hyperparams=value,
            n_updates_done=value,
            n_updates_skipped=jnp.array([4, 4]),
        )

    nonfinite = np.zeros((2, len(QUANTITIES)), bool)
    nonfinite[1, 3] = True
    kept = keep_finite_policies(runner(2.0), runner(1.0), jnp.asarray(nonfinite))
    rows = [kept.actor, kept.critic, kept.normalizers.value]
    for leaf in jax.tree.leaves(rows):
        np.testing.assert_array_equal(leaf, [[2.0] * 3, [1.0] * 3])
    np.testing.assert_array_equal(kept.learning_rate, [2.0, 1.0])
    np.testing.assert_array_equal(kept.n_updates_skipped, [4, 5])
    # What all policies share goes on.
    assert (kept.env_state, kept.rng, kept.n_updates_done) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("quantity", "remedy"),
    [("rewards", "the environment returned it"), ("values", "lower the learning rate")],
)
def test_the_error_names_the_environment_only_for_what_it_returned(quantity, remedy):
    found = np.array([[name == quantity for name in QUANTITIES]])
    with pytest.raises(NonFiniteError, match=f"{quantity} of policy 0; {remedy}"):
        raise_nonfinite(found, 3)
