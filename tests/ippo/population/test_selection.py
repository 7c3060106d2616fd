"""Selection among a population's members."""

import dataclasses
import os
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.hyperparameters import as_arrays, flat_items
from jaxagents.ippo.population.selection import Decision, Generation
from tests.agents import COORDINATION, FAST, assert_trees_equal, begin, shared_agent, tiny

KEYS = jax.vmap(jax.random.key)(jnp.arange(4))
RATE = "actor_optimizer_params.learning_rate"
EVALUATED = {"n_steps": 6, "eval_frequency": 2, "n_evals": 3}
VARIED = ja.PopulationBasedTraining({"ent_coeff": (1e-3, 0.1), RATE: (1e-4, 1e-2)})


class Fixed:
    """Replaces after two updates what it is told to."""

    varied = ("ent_coeff",)
    settings = {"rule": "Fixed"}  # noqa: RUF012

    def __init__(self, parents, values=None):
        self.parents = parents
        self.values = values
        self.seen = []

    def check(self, n_members):
        assert n_members == len(self.parents)

    def select(self, generation):
        self.seen.append(generation)
        if generation.n_updates_done != 2:
            return None
        return Decision(np.array(self.parents), {"ent_coeff": np.array(self.values, np.float32)})


def generation(returns, n_blocks_done=1, **hyperparams):
    return Generation(
        n_updates_done=n_blocks_done,
        n_blocks_done=n_blocks_done,
        returns=np.atleast_2d(np.asarray(returns, float)),
        hyperparams={name: np.asarray(values) for name, values in hyperparams.items()},
    )


@pytest.mark.slow
def test_members_go_on_from_their_parents_by_their_own_keys():
    agent = shared_agent(COORDINATION, **EVALUATED)
    begun, _ = shared_agent(COORDINATION, **{**EVALUATED, "n_steps": 2}).train(KEYS, FAST)
    rule = Fixed([0, 0, -1, 3], [0.0, 0.05, 0.0, 0.0])

    runner, metrics = agent.train(KEYS, FAST, selection=rule)

    own, parent = agent.member(begun, 1), agent.member(begun, 0)
    child = parent.replace(rng=own.rng)
    expected, _ = agent.train(None, FAST.replace(ent_coeff=0.05), child)
    assert_trees_equal(agent.member(runner, 1), expected)
    for i in (0, 3):
        assert_trees_equal(agent.member(runner, i), agent.train(KEYS[i], FAST)[0])
    ended = agent.member(begun, 2)
    assert_trees_equal(agent.member(runner, 2), agent.runners.for_this_agent(ended))
    np.testing.assert_array_equal(
        metrics["parents"], [[0, 0, 0, 0], [1, 1, 0, 1], [2, 2, -1, -1], [3, 3, 3, 3]]
    )
    assert np.isnan(metrics["returns"][2, 2:]).all()
    np.testing.assert_allclose(
        metrics["hyperparams.ent_coeff"][1], [FAST.ent_coeff, FAST.ent_coeff, 0.05, 0.05]
    )


@pytest.mark.slow
def test_a_rule_sees_evaluations_and_hyperparameters():
    agent = shared_agent(COORDINATION, **EVALUATED)
    rule = Fixed([0, 1, 2, 3], [0.0] * 4)
    hyperparams = FAST.replace(ent_coeff=[0.1, 0.2, 0.3, 0.4])
    _, metrics = agent.train(KEYS, hyperparams, selection=rule)
    assert [each.n_updates_done for each in rule.seen] == [0, 2, 4]
    assert [each.n_blocks_done for each in rule.seen] == [0, 1, 2]
    np.testing.assert_allclose(
        rule.seen[2].returns, metrics["returns"].mean(axis=(2, 3)).T[:3], rtol=1e-6
    )
    np.testing.assert_allclose(rule.seen[0].hyperparams["ent_coeff"], [0.1, 0.2, 0.3, 0.4])


@pytest.mark.slow
def test_a_resumed_population_selects_as_if_uninterrupted(tmp_path):
    def agent(directory, **changes):
        config = tiny(**{**EVALUATED, "checkpoint_dir": directory, **changes})
        return ja.DiscreteIPPO(COORDINATION, None, config)

    start = VARIED.spread(FAST, len(KEYS))
    whole, expected = agent(tmp_path / "whole").train(KEYS, start, selection=VARIED)
    part = tmp_path / "part"
    agent(part, n_steps=4).train(KEYS, start, selection=VARIED)

    with pytest.raises(ValueError, match="was trained with selection"):
        agent(part).resume()
    runner, metrics = agent(part).resume(selection=VARIED)

    assert_trees_equal(runner, whole)
    assert_trees_equal(metrics, expected)
    assert not (metrics["parents"] == np.arange(4)[:, None]).all()
    agent(part).restore("best")


@pytest.mark.slow
def test_a_resumed_population_keeps_what_is_varied_per_member(tmp_path):
    config = tiny(**{**EVALUATED, "checkpoint_dir": tmp_path, "n_steps": 4})
    start = VARIED.spread(FAST, len(KEYS))
    before, _ = ja.DiscreteIPPO(COORDINATION, None, config).train(KEYS, start, selection=VARIED)
    agent = ja.DiscreteIPPO(COORDINATION, None, dataclasses.replace(config, n_steps=6))
    with pytest.raises(ValueError, match="ent_coeff is varied by the selection, so each member"):
        agent.resume(FAST.replace(gae_lambda=0.5), VARIED)
    runner, _ = agent.resume(before.hyperparams.replace(gae_lambda=0.5), VARIED)
    np.testing.assert_array_equal(runner.hyperparams.gae_lambda, np.float32([0.5] * len(KEYS)))
    assert len(set(np.ravel(runner.hyperparams.ent_coeff))) > 1


def test_a_continued_population_keeps_what_is_varied_per_member():
    agent = shared_agent(COORDINATION, **EVALUATED)
    hyperparams = VARIED.spread(FAST, len(KEYS))
    runner = jax.vmap(lambda key: begin(agent).replace(rng=key))(KEYS)
    runner = runner.replace(hyperparams=as_arrays(hyperparams))
    with pytest.raises(ValueError, match=r"each member has its own.*change the runner's hyperp"):
        agent.train(None, FAST, runner, VARIED)


KILLED = """
import os, signal, sys
import jaxagents as ja
from tests.agents import COORDINATION, FAST, tiny
from tests.ippo.population import test_selection as these

name = sys.argv[1]
rule, start = these.rules()[name]
select, calls = type(rule).select, []

def killed(self, generation):
    calls.append(None)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return select(self, generation)

type(rule).select = killed
these.saving_agent(sys.argv[2]).train(these.KEYS, start, selection=rule)
"""


def rules():
    halving = ja.SuccessiveHalving(n_blocks=4, factor=2)
    return {"evolution": (VARIED, VARIED.spread(FAST, len(KEYS))), "halving": (halving, FAST)}


def saving_agent(directory):
    return ja.DiscreteIPPO(COORDINATION, None, tiny(**EVALUATED, checkpoint_dir=directory))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evolution", "halving"])
def test_a_population_killed_during_a_selection_is_resumed_bit_for_bit(name, tmp_path):
    rule, start = rules()[name]
    whole, expected = saving_agent(tmp_path / "whole").train(KEYS, start, selection=rule)
    command = [sys.executable, "-c", KILLED, name, str(tmp_path / "part")]
    flags = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    assert subprocess.run(command, env=os.environ | flags).returncode == -signal.SIGKILL
    runner, metrics = saving_agent(tmp_path / "part").resume(selection=rule)
    assert_trees_equal(runner, whole)
    assert_trees_equal(metrics, expected)


@pytest.mark.slow
def test_one_that_has_diverged_is_replaced():
    agent = shared_agent(COORDINATION, **EVALUATED)
    hyperparams = FAST.replace(vf_coeff=[0.5, 0.5, 0.5, 3e38])
    rule = ja.PopulationBasedTraining({RATE: (1e-4, 1e-2)}, every=2)
    runner, metrics = agent.train(KEYS, hyperparams, selection=rule)
    assert metrics["parents"][3, 2] == -1
    assert 0 <= metrics["parents"][3, 3] < 3
    assert np.isfinite(metrics["returns"][3, 3]).all()
    assert 1e-4 <= float(flat_items(agent.member(runner, 3).hyperparams)[RATE]) <= 1e-2


def test_the_weakest_take_over_from_the_strongest():
    rule = ja.PopulationBasedTraining({"ent_coeff": (1e-3, 0.1)}, share=0.25)
    values = np.full(8, 0.01, np.float32)
    returns = [3.0, -1.0, 7.0, 5.0, 4.0, 8.0, 0.0, 6.0]
    decision = rule.select(generation(returns, ent_coeff=values))
    replaced = decision.parents != np.arange(8)
    np.testing.assert_array_equal(np.flatnonzero(replaced), [1, 6])
    assert set(decision.parents[replaced]) <= {2, 5}
    explored = decision.hyperparams["ent_coeff"]
    assert set(np.round(explored[replaced].astype(float), 5)) <= {0.008, 0.0125}
    np.testing.assert_array_equal(explored[~replaced], values[~replaced])


def test_stopped_members_are_replaced_first_and_are_no_parents():
    rule = ja.PopulationBasedTraining({"gamma": (0.9, 0.999)}, share=0.5)
    gammas = np.full((4, 2), 0.99, np.float32)
    decision = rule.select(generation([np.nan, 1.0, np.nan, np.nan], gamma=gammas))
    np.testing.assert_array_equal(decision.parents, [1, 1, 1, 1])
    # 1 - 0.01 * 0.8 and 1 - 0.01 * 1.25, for each policy
    assert set(np.round(decision.hyperparams["gamma"][[0, 2, 3]].astype(float), 5).ravel()) == {
        0.992,
        0.9875,
    }


def test_values_stay_within_their_bounds_and_policies_are_explored_apart():
    rule = ja.PopulationBasedTraining({"ent_coeff": (0.009, 0.0095)}, factors=(0.5, 2.0))
    values = np.full((2, 50), 0.009, np.float32)
    decision = rule.select(generation([0.0, 1.0], ent_coeff=values))
    assert set(decision.hyperparams["ent_coeff"][0]) == {np.float32(0.009), np.float32(0.0095)}


def test_selection_is_due_every_so_many_evaluations_and_depends_on_the_seed():
    returns = np.arange(40.0)
    bounds = {"ent_coeff": (1e-3, 0.1)}
    values = np.full(40, 0.01, np.float32)

    def parents(n_blocks_done, **settings):
        rule = ja.PopulationBasedTraining(bounds, **settings)
        decision = rule.select(generation(returns, n_blocks_done, ent_coeff=values))
        return None if decision is None else decision.parents.tolist()

    assert parents(0) is None
    assert [parents(n, every=3) is None for n in (1, 2, 3, 4)] == [True, True, False, True]
    assert parents(1) == parents(1) != parents(1, seed=1)
    assert parents(1) != parents(2)


def test_members_begin_between_the_bounds_and_the_first_as_given():
    hyperparams = ja.HyperParameters(ent_coeff=[0.5, 0.6], gamma=0.99)
    rule = ja.PopulationBasedTraining({"ent_coeff": (1e-4, 1e-1), "gamma": (0.9, 0.999)})
    spread = rule.spread(hyperparams, 2000, n_policies=2)
    values = np.asarray(spread.ent_coeff)
    np.testing.assert_allclose(values[0], [0.5, 0.6])
    np.testing.assert_array_equal(values[1:, 0], values[1:, 1])
    assert 1e-4 <= values[1:].min() <= values[1:].max() <= 1e-1
    # uniform in the logarithm: a third of the values in each decade
    np.testing.assert_allclose(np.mean(values[1:, 0] < 1e-3), 1 / 3, atol=0.04)
    np.testing.assert_allclose(np.mean(1 - np.asarray(spread.gamma) < 0.01), 0.5, atol=0.04)
    assert spread.gae_lambda == hyperparams.gae_lambda


def test_members_begin_with_a_value_for_each_policy_or_with_one():
    rule = ja.PopulationBasedTraining({"ent_coeff": (1e-4, 1e-1)})
    for values, shape in (([0.05, 0.06], "(2,)"), ([[0.05]] * 4, "(4, 1)")):
        with pytest.raises(ValueError, match=re.escape(f"ent_coeff has the shape {shape}; give")):
            rule.spread(ja.HyperParameters(ent_coeff=values), 4)


def test_halving_keeps_the_best_groups_so_far():
    rule = ja.SuccessiveHalving(n_blocks=9, factor=3, group_size=2)
    assert rule.rungs(9) == {1: 3, 3: 1}
    returns = np.array([[0, 0, 5, 5, 1, 9, 4, 4, 3, 3, 2, 2], [0, 0, 0, 0, 9, 9, 0, 0, 0, 0, 0, 0]])
    assert rule.select(generation(returns, n_blocks_done=2)) is None
    decision = rule.select(generation(returns, n_blocks_done=1))
    # means over members and evaluations: 0, 2.5, 7, 2, 1.5, 1; two of six groups go on
    np.testing.assert_array_equal(decision.parents, [-1, -1, 2, 3, 4, 5, *[-1] * 6])
    assert decision.hyperparams == {}


def test_a_group_with_a_member_that_has_diverged_ends():
    rule = ja.SuccessiveHalving(n_blocks=4, factor=2)
    decision = rule.select(generation([[1.0, np.nan, 5.0, 3.0]], n_blocks_done=1))
    np.testing.assert_array_equal(decision.parents, [-1, -1, 2, 3])


def test_a_group_that_still_trains_goes_before_one_that_has_stopped():
    rule = ja.SuccessiveHalving(n_blocks=4, factor=2, group_size=2)
    returns = [[1.0, 1.0, 1.0, 1.0], [np.nan, np.nan, 2.0, np.nan]]
    decision = rule.select(generation(returns, n_blocks_done=1))
    np.testing.assert_array_equal(decision.parents, [-1, -1, 2, 3])


@pytest.mark.slow
def test_halving_trains_the_best_to_the_end():
    agent = shared_agent(COORDINATION, **EVALUATED)
    rule = ja.SuccessiveHalving(n_blocks=3, factor=3)
    runner, metrics = agent.train(KEYS, FAST, selection=rule)
    to_the_end = np.isfinite(metrics["n_updates_done"][:, -1])
    assert to_the_end.sum() == 1
    returns = np.asarray(metrics["returns"])[:, :2].mean(axis=(1, 2, 3))
    assert np.argmax(to_the_end) == np.argmax(returns)
    np.testing.assert_array_equal(runner.n_updates_done, np.where(to_the_end, 6, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ja.PopulationBasedTraining({}), "varies nothing"),
        (lambda: ja.PopulationBasedTraining({"entropy": (0, 1)}), "no hyperparameter; known are"),
        (lambda: ja.PopulationBasedTraining({"ent_coeff": (0.1, 0.1)}), "the lower one first"),
        (lambda: ja.PopulationBasedTraining({"ent_coeff": (-1.0, 0.1)}), "finite and at least 0"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 1.0)}), "stay below 1"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, every=0), "every=0"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, every=1.5), r"every=1\.5 is"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, share=0.6), "share=0.6"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, factors=()), "factors=()"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, share="a"), "share='a'"),
        (lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, factors=0.5), "factors=0.5"),
        (
            lambda: ja.PopulationBasedTraining({"gamma": (0.9, 0.99)}, factors=("a",)),
            r"factors=\('a',\) are not positive numbers",
        ),
        (lambda: ja.PopulationBasedTraining({"gamma": 0.9}), "the lower one first"),
        (lambda: ja.SuccessiveHalving(n_blocks=0), "n_blocks=0"),
        (lambda: ja.SuccessiveHalving(n_blocks=9, factor=1), "factor=1"),
        (lambda: ja.SuccessiveHalving(n_blocks="9"), "n_blocks='9' is not an integer"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("keys", "changes", "selection", "error", "message"),
    [
        (KEYS[0], {}, VARIED, ValueError, "needs a population"),
        (KEYS[:1], {}, VARIED, ValueError, "selects nothing"),
        (KEYS, {"n_evals": 0}, VARIED, ValueError, "n_evals=0"),
        (KEYS, {}, "best", TypeError, "'best' is no rule"),
        (KEYS, {}, ja.SuccessiveHalving(3, 3, 3), ValueError, "4 members do not divide"),
        (KEYS, {"learning_rate_schedule": "kl"}, VARIED, ValueError, "changes nothing"),
    ],
)
def test_selections_that_do_not_fit_are_refused(keys, changes, selection, error, message):
    agent = shared_agent(COORDINATION, **{**EVALUATED, **changes})
    with pytest.raises(error, match=message):
        agent.train(keys, FAST, selection=selection)
