"""Agents that learn at the same time."""

import jax
import numpy as np
import pytest

import jaxagents as ja
from tests.agents import FAST, SMALL, assert_trees_close, assert_trees_equal, tiny
from tests.probes import Coordination, Pennies, RealWalk, Walk

KEY = jax.random.key(0)


def pennies_agents(folder=None, env=None, **changes):
    """Two agents of different structure, on the two sides of an environment."""
    env = env or Pennies()
    folders = {name: None if folder is None else folder / name for name in ("same", "other")}
    configs = {
        "same": tiny(checkpoint_dir=folders["same"], **changes),
        "other": tiny(
            checkpoint_dir=folders["other"],
            actor_epochs=1,
            recurrent="mingru",
            actor_layers=ja.Layers(hidden_sizes=(4,), memory_size=4),
            **changes,
        ),
    }
    return {
        name: ja.DiscreteIPPO(ja.Side(env, [i]), None, configs[name])
        for i, name in enumerate(("same", "other"))
    }


def test_sides_play_each_other():
    results = ja.train_together(pennies_agents(n_evals=4), KEY, FAST)
    (same, same_metrics), (other, other_metrics) = results.values()
    assert int(same.n_updates_done) == int(other.n_updates_done) == 3
    # One of both earns 1 in every episode, in evaluations and in rollouts.
    np.testing.assert_array_equal(same_metrics["returns"] + other_metrics["returns"], 1.0)
    assert same_metrics["returns"].shape == (3, 4, 1)
    assert_trees_equal(same.env_state.env_state.whole, other.env_state.env_state.whole)


@pytest.mark.slow
def test_each_side_learns_by_its_own_hyperparameters():
    still = FAST.replace(
        actor_optimizer_params=ja.OptimizerParams(learning_rate=0.0),
        critic_optimizer_params=ja.OptimizerParams(learning_rate=0.0),
    )
    agents = pennies_agents(n_steps=2)
    results = ja.train_together(agents, KEY, {"same": FAST, "other": still})
    for i, (name, agent) in enumerate(agents.items()):
        before = agent.init(jax.random.fold_in(KEY, i), FAST)
        same = jax.tree.map(np.array_equal, results[name][0].actor.params, before.actor.params)
        assert all(jax.tree.leaves(same)) == (name == "other")


@pytest.mark.slow
def test_sides_learn_a_common_task():
    """Each names its own cue, and both earn the share of those that did."""
    env = Coordination(2)
    agents = {
        name: ja.DiscreteIPPO(
            ja.Side(env, [i]), None, tiny(n_steps=60, eval_frequency=60, n_evals=16)
        )
        for i, name in enumerate("ab")
    }
    for _, metrics in ja.train_together(agents, KEY, FAST).values():
        assert metrics["returns"][-1].mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("n_done", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_a_training_together_resumes_bit_for_bit(tmp_path, n_done):
    changes = {"eval_frequency": 2, "env": Pennies(n_steps=3)}
    whole = ja.train_together(pennies_agents(tmp_path / "a", n_steps=6, **changes), KEY, FAST)
    ja.train_together(pennies_agents(tmp_path / "b", n_steps=n_done, **changes), KEY, FAST)
    parts = ja.resume_together(pennies_agents(tmp_path / "b", n_steps=6, **changes))
    for name in whole:
        assert_trees_equal(parts[name], whole[name])


@pytest.mark.slow
def test_agents_whose_checkpoints_differ_resume_from_the_last_common_one(tmp_path):
    """As after a kill between two agents' writes."""
    changes = {"n_steps": 6, "eval_frequency": 2}
    whole = ja.train_together(pennies_agents(tmp_path, **changes), KEY, FAST)
    (tmp_path / "other" / "6").rename(tmp_path / "other-6")
    (tmp_path / "same" / "6" / "mark").touch()
    parts = ja.resume_together(pennies_agents(tmp_path, **changes))
    for name in whole:
        assert_trees_equal(parts[name], whole[name])
        assert (tmp_path / name / "6").exists()
    assert not (tmp_path / "same" / "6" / "mark").exists()  # its updates were done anew


@pytest.mark.slow
def test_each_agent_restores_its_own_checkpoints(tmp_path):
    results = ja.train_together(pennies_agents(tmp_path), KEY, FAST)
    for name, agent in pennies_agents(tmp_path).items():
        runner, history = agent.restore(mode="last")
        assert_trees_equal(runner, results[name][0])
        np.testing.assert_array_equal(history["returns"], results[name][1]["returns"])


@pytest.mark.slow
def test_agents_of_whole_environments_learn_as_alone():
    agents = {
        "epochs": ja.DiscreteIPPO(Walk(), None, tiny(actor_epochs=2)),
        "real": ja.ContinuousIPPO(RealWalk(), None, tiny()),
    }
    together = ja.train_together(agents, KEY, FAST)
    for i, (name, agent) in enumerate(agents.items()):
        alone, metrics = agent.train(jax.random.fold_in(KEY, i), FAST)
        assert_trees_close(together[name][0].actor, alone.actor, atol=1e-5)
        np.testing.assert_allclose(together[name][1]["returns"], metrics["returns"], atol=1e-4)


@pytest.mark.slow
def test_a_callback_ends_the_training_of_all():
    env = Pennies()
    agents = {
        "ends": ja.DiscreteIPPO(
            ja.Side(env, [0]), None, tiny(n_steps=9), callbacks=[lambda evaluation: True]
        ),
        "other": ja.DiscreteIPPO(ja.Side(env, [1]), None, tiny(n_steps=9)),
    }
    results = ja.train_together(agents, KEY, FAST)
    assert [int(runner.n_updates_done) for runner, _ in results.values()] == [0, 0]


@pytest.mark.slow
def test_nan_ends_the_training_of_all(tmp_path):
    """No agent keeps a checkpoint of the block that failed."""
    env = Pennies()
    agents = {
        name: ja.DiscreteIPPO(
            ja.Side(env, [i]), None, tiny(n_steps=4, checkpoint_dir=tmp_path / name)
        )
        for i, name in enumerate(("fine", "ill"))
    }
    ill = FAST.replace(actor_optimizer_params=ja.OptimizerParams(learning_rate=1e38))
    with pytest.raises(ja.NonFiniteError, match="ill: update"):
        ja.train_together(agents, KEY, {"fine": FAST, "ill": ill})
    kept = [sorted(path.name for path in (tmp_path / name).glob("[0-9]*")) for name in agents]
    assert kept == [["0"], ["0"]]


SIDE = ja.Side(Pennies(), [0])


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ({}, "agents is empty"),
        (
            {"a": ja.Side(SIDE.env, [0]), "b": ja.Side(SIDE.env, [0])},
            r"the sides have the actors \[0, 0\]; together they must have each of 0 to 1 once",
        ),
        ({"a": ja.Side(SIDE.env, [0])}, r"the sides have the actors \[0\]"),
        ({"a": SIDE, "b": ja.Side(Pennies(), [1])}, "the sides are of several environments"),
    ],
)
def test_agents_that_do_not_fit_are_refused(agents, message):
    agents = {name: ja.DiscreteIPPO(side, None, tiny()) for name, side in agents.items()}
    with pytest.raises(ValueError, match=message):
        ja.train_together(agents, KEY, FAST)


def test_configurations_that_do_not_fit_are_refused():
    sides = [ja.Side(SIDE.env, [i]) for i in range(2)]
    configs = [tiny(), tiny(batch_size=8, actor_layers=SMALL)]
    agents = {
        name: ja.DiscreteIPPO(side, None, config)
        for name, side, config in zip("ab", sides, configs, strict=True)
    }
    with pytest.raises(ValueError, match="batch_size differs between the agents"):
        ja.train_together(agents, KEY, FAST)
    agents["b"] = ja.DiscreteIPPO(sides[1], None, tiny())
    with pytest.raises(ValueError, match="hyperparams names a, and the agents are a, b"):
        ja.train_together(agents, KEY, {"a": FAST})


def test_nothing_to_resume_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no update after which every agent has a checkpoint"):
        ja.resume_together(pennies_agents(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("centralized", [0, 1])
def test_one_side_may_have_a_centralised_critic(centralized):
    env = Pennies(n_steps=2)
    agents = {
        name: ja.DiscreteIPPO(
            ja.Side(env, [i]), None, tiny(n_steps=1, n_evals=0, centralized_critic=i == centralized)
        )
        for i, name in enumerate("ab")
    }
    results = ja.train_together(agents, KEY, FAST)
    assert [int(runner.n_updates_done) for runner, _ in results.values()] == [1, 1]


def test_sides_of_different_parameters_are_refused():
    agents = {
        name: ja.DiscreteIPPO(ja.Side(SIDE.env, [i]), params, tiny())
        for i, (name, params) in enumerate({"a": 1.0, "b": 7.0}.items())
    }
    with pytest.raises(ValueError, match="env_params differ between the agents of sides"):
        ja.train_together(agents, KEY, FAST)


@pytest.mark.slow
def test_agents_do_not_resume_from_each_others_checkpoints(tmp_path):
    """And nothing is removed from the directories."""
    ja.train_together(pennies_agents(tmp_path), KEY, FAST)
    (tmp_path / "other" / "3").rename(tmp_path / "other-3")
    agents = pennies_agents(tmp_path)
    agents["other"] = ja.DiscreteIPPO(
        ja.Side(agents["same"].env.env, [0]), None, tiny(checkpoint_dir=tmp_path / "other")
    )
    agents["same"] = ja.DiscreteIPPO(
        ja.Side(agents["same"].env.env, [1]), None, tiny(checkpoint_dir=tmp_path / "same")
    )
    with pytest.raises(ValueError, match=r"its side is \[0\], and this agent's is \[1\]"):
        ja.resume_together(agents)
    assert (tmp_path / "same" / "3").exists()


@pytest.mark.slow
def test_two_agents_of_two_teams_resume_bit_for_bit_and_report_both(tmp_path):
    """simple_tag: predators and prey, by agents of different networks and epochs."""
    env, params = ja.make("jaxmarl/MPE_simple_tag_v3")

    def agents(folder, n_steps):
        sides = {"predators": [0, 1, 2], "prey": [3]}
        epochs = {"predators": 2, "prey": 1}
        return {
            name: ja.DiscreteIPPO(
                ja.Side(env, actors),
                params,
                tiny(
                    n_steps=n_steps,
                    checkpoint_dir=folder / name,
                    actor_epochs=epochs[name],
                    actor_layers=ja.Layers(hidden_sizes=(4 * epochs[name],)),
                ),
            )
            for name, actors in sides.items()
        }

    whole = ja.train_together(agents(tmp_path / "a", 4), KEY, FAST)
    ja.train_together(agents(tmp_path / "b", 2), KEY, FAST)
    parts = ja.resume_together(agents(tmp_path / "b", 4))
    for name, n_actors in {"predators": 3, "prey": 1}.items():
        assert_trees_equal(parts[name], whole[name])
        assert whole[name][1]["returns"].shape == (3, 2, n_actors)
