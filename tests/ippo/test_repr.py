"""Agents and runners describe themselves in a few lines."""

import jax

import jaxagents as ja
from tests.probes import RealWalk, Walk


def test_an_agents_repr_names_environment_actors_policies_networks_and_updates():
    config = ja.AgentConfig(n_steps=3_000, batch_size=4, rollout_length=8)
    lines = repr(ja.DiscreteIPPO(Walk(), None, config)).splitlines()
    assert lines[0] == "DiscreteIPPO of 1 policy for 2 actors"
    assert lines[1].split() == ["environment:", "Walk,", "4", "in", "parallel"]
    assert "PolicyNetwork, " in lines[4]
    assert "ValueNetwork, " in lines[5]
    assert lines[6].endswith("3,000 updates of 32 environment steps")


def test_parameters_are_counted_for_one_policy():
    layers = ja.Layers(hidden_sizes=(5,))
    config = ja.AgentConfig(n_steps=1, actor_layers=layers, parameter_sharing="independent")
    agent = ja.ContinuousIPPO(RealWalk(), None, config)
    n_features, n_outputs = agent.environments.observation.features.shape[1], 1
    # Weights and biases of two layers, and the log standard deviation.
    n_params = (n_features + 1) * 5 + (5 + 1) * n_outputs + n_outputs
    assert f"PolicyNetwork, {n_params} parameters per policy" in repr(agent)
    assert repr(agent).startswith("ContinuousIPPO of 2 policies for 2 actors")


def test_a_runners_repr_is_one_short_line():
    agent = ja.DiscreteIPPO(Walk(), None, ja.AgentConfig(n_steps=1, progress_bar=False))
    runner = agent.init(jax.random.key(0), ja.HyperParameters())
    text = repr(runner)
    assert text.startswith("Runner(n_updates_done=0, n_updates_skipped=[0], actor: ")
    assert len(text) < 200
    assert repr(jax.eval_shape(lambda: runner)).startswith("Runner(n_updates_done=<int32[]>")
