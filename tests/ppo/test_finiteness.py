"""Which quantity is named when something is not finite."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ppo.finiteness import QUANTITIES, describe_nonfinite, find_nonfinite
from jaxagents.types import Batch, Memory, NetworkState, Observation, Path

ONE = jnp.ones((2, 1, 1))  # two steps of one actor


def found(value_weight=ONE, explained=1.0, **changed):
    """Look at an update of which everything is 1, but for what is changed."""

    def of(name):
        return changed.get(name, ONE)

    batch = Batch(
        observation=Observation(of("observations")[..., None]),
        critic_features=ONE,
        begins=jnp.zeros(ONE.shape, bool),
        memory=Memory(),
        action=ONE,
        log_prob=ONE,
        path=Path(of("rewards"), ONE, ONE, jnp.zeros_like(ONE, bool), jnp.zeros_like(ONE, bool)),
        advantage=ONE,
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
    metrics["explained_variance"] = jnp.asarray(explained)
    return np.asarray(find_nonfinite(batch, actor, critic, of("running statistics"), metrics))


def test_nothing_is_found_where_all_is_finite():
    assert not found().any()
    assert len(found()) == len(QUANTITIES)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", QUANTITIES)
def test_each_quantity_is_found_by_its_own_name(name, value):
    flags = found(**{name: ONE.at[1].set(value)})
    assert [QUANTITIES[i] for i in np.flatnonzero(flags)] == [name]
    text = describe_nonfinite(np.stack([np.zeros_like(flags), flags]), update=7)
    assert text == f"update 7 is not finite in the {name} of policy 1"


def test_values_whose_variance_is_no_number_are_found():
    assert [QUANTITIES[i] for i in np.flatnonzero(found(explained=np.nan))] == ["values"]


@pytest.mark.parametrize("name", ["rewards", "values"])
def test_what_weighs_nothing_may_be_anything(name):
    assert not found(value_weight=ONE.at[1].set(0.0), **{name: ONE.at[1].set(np.nan)}).any()


def test_the_first_quantity_and_all_policies_are_told():
    flags = np.zeros((3, len(QUANTITIES)), bool)
    flags[0, [4, 6]] = flags[2, 1] = True
    expected = "update 1 is not finite in the actor's loss of policy 0 (and something of policy 2)"
    assert describe_nonfinite(flags, update=1) == expected
