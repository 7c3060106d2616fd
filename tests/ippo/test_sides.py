"""Agents that learn one side of an environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.sides.opponents import Seats
from tests.agents import FAST, assert_trees_equal, opinionated_runner, tiny
from tests.probes import Coordination, Pennies, RealWalk, Walk, heads, tails

KEY = jax.random.key(0)


def side_agent(*opponents, env=None, actors=(0,), options=None, **changes):
    side = ja.Side(env or Pennies(), actors, opponents=opponents, **(options or {}))
    return ja.DiscreteIPPO(side, None, tiny(**changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opponent", "answer"), [(heads, 0), pytest.param(tails, 1, marks=pytest.mark.slow)]
)
def test_an_agent_learns_the_answer_to_an_opponent(opponent, answer):
    agent = side_agent(opponent, n_steps=40, eval_frequency=40)
    runner, metrics = agent.train(KEY, FAST)
    np.testing.assert_array_equal(metrics["returns"][-1], 1.0)
    np.testing.assert_array_equal(metrics["info_beat_opponent"][-1], 1.0)
    observation = ja.Observation(jnp.zeros((1, 2)), elapsed=jnp.zeros((), jnp.int32))
    assert agent.policy(runner, observation).tolist() == [answer]


@pytest.mark.slow
def test_policies_of_all_actors_play_their_part():
    """The agent of both actors knows that its second actor plays tails."""
    both = ja.DiscreteIPPO(Pennies(), None, tiny(parameter_sharing="independent", agent_id=True))
    runner = both.init(KEY, FAST)
    heads_then_tails = _with_output_bias(runner, [[50.0, 0.0], [0.0, 50.0]])
    opponent = ja.FrozenPolicies(both, heads_then_tails)
    for actor, expected in ((0, 1.0), (1, 1.0)):
        # Against tails, matching is tails; against heads, differing is tails.
        agent = side_agent(opponent, actors=(actor,), n_evals=4)
        side_runner = _with_output_bias(agent.init(KEY, FAST), [[0.0, 50.0]])
        returns = agent.eval(KEY, runner=side_runner)["returns"]
        np.testing.assert_array_equal(returns, np.full((4, 1), expected))


def _with_output_bias(runner, bias):
    """Zero the actors' parameters but for the last layer's bias, ``[policies, actions]``."""
    params = jax.tree.map(jnp.zeros_like, runner.actor.params)
    bias = jnp.asarray(bias)
    found = []

    def put(path, leaf):
        if leaf.shape == bias.shape and "bias" in str(path[-1]):
            found.append(path)
            return bias
        return leaf

    params = jax.tree_util.tree_map_with_path(put, params)
    assert len(found) == 1
    return runner.replace(actor=runner.actor._replace(params=params))


@pytest.mark.slow
def test_members_play_with_their_own_parameters():
    """One agent, two members: one plays heads, the other tails."""
    learner = side_agent(heads, actors=(1,))
    runner = learner.init(KEY, FAST)
    members = {
        "heads": _with_output_bias(runner, [[50.0, 0.0]]),
        "tails": _with_output_bias(runner, [[0.0, 50.0]]),
    }
    agent = side_agent(ja.FrozenPolicies(learner, members), n_evals=32)
    always_heads = _with_output_bias(agent.init(KEY, FAST), [[50.0, 0.0]])
    metrics = agent.eval(KEY, runner=always_heads)
    np.testing.assert_array_equal(metrics["returns"][:, 0], metrics["info_opponent"] == 0)
    assert 0 < metrics["returns"].mean() < 1


def test_past_selves_are_the_learner_at_the_right_times():
    options = {"past_selves": ja.PastSelves(every=2, n_members=2)}
    agent = side_agent(heads, options=options, n_steps=5)
    runner = agent.init(KEY, FAST)
    for _ in range(4):
        runner, _ = agent.step(runner)
        if int(runner.n_updates_done) == 2:
            after_two = agent.networks.actor_of(runner)
    pool = runner.env_state.env_state.pool
    # The untrained policy came first, and made room after four updates.
    after_four = agent.networks.actor_of(runner)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), after_four, after_two)
    assert_trees_equal(pool.params[-1], stacked)
    assert pool.exists.tolist() == [True, True, True]
    assert int(pool.n_remembered) == 3


@pytest.mark.slow
def test_evaluations_are_played_against_the_named_opponents_alone():
    options = {"past_selves": ja.PastSelves(every=1, n_members=4)}
    agent = side_agent(tails, options=options, n_steps=3, n_evals=16)
    _, metrics = agent.train(KEY, FAST)
    np.testing.assert_array_equal(metrics["info_opponent"], 0.0)


@pytest.mark.slow
def test_a_pool_resumes_bit_for_bit(tmp_path):
    options = {"past_selves": ja.PastSelves(every=1, n_members=2), "prioritized": True}

    def agent(name, n_steps):
        folder = tmp_path / name
        return side_agent(
            heads, tails, options=options, n_steps=n_steps, checkpoint_dir=folder, eval_frequency=2
        )

    whole, _ = agent("whole", 6).train(KEY, FAST)
    agent("parts", 4).train(KEY, FAST)
    parts, _ = agent("parts", 6).resume()
    assert_trees_equal(parts, whole)


@pytest.mark.slow
def test_recurrent_opponents_remember():
    env, options = Pennies(n_steps=3), {"recurrent": "gru", "n_steps": 2}
    past = {"past_selves": ja.PastSelves(every=1, n_members=2)}
    other = side_agent(heads, env=env, actors=(1,), **options)
    runner, _ = other.train(KEY, FAST)
    agent = side_agent(ja.FrozenPolicies(other, runner), env=env, options=past, **options)
    runner, _ = agent.train(KEY, FAST)
    memory = runner.env_state.env_state.memory
    assert [jax.tree.leaves(each)[0].shape for each in memory] == [(4, 1, 8), (4, 1, 8)]


def test_opponents_that_do_not_fit_are_refused():
    three = ja.DiscreteIPPO(Coordination(3), None, tiny())
    frozen = ja.FrozenPolicies(three, opinionated_runner(three))
    with pytest.raises(ValueError, match=r"an agent of 3 actors cannot play the actors \[1\] of 2"):
        side_agent(frozen)
    real = ja.ContinuousIPPO(RealWalk((9,)), None, tiny())
    frozen = ja.FrozenPolicies(real, opinionated_runner(real))
    with pytest.raises(ValueError, match=r"whose actions are Box.* cannot play Discrete"):
        side_agent(frozen)
    with pytest.raises(ValueError, match="runners is empty"):
        ja.FrozenPolicies(three, [])


def test_members_that_did_equally_many_updates_are_all_kept():
    agent = side_agent(heads)
    runner = agent.init(KEY, FAST)
    frozen = ja.FrozenPolicies(agent, [runner, runner])
    assert frozen.names == ("after 0 updates", "after 0 updates (2)")
    assert jax.tree.leaves(frozen.params())[0].shape[0] == 2


@pytest.mark.slow
def test_a_frozen_side_plays_its_own_actors_in_any_order():
    """Actor 2 has the policy that plays 1, and actor 0 the one that plays 2."""
    env = Walk(deaths=(9, 9, 9), limit=1)
    config = tiny(parameter_sharing="independent")
    other = ja.DiscreteIPPO(ja.Side(env, [2, 0], opponents=[heads]), None, config)
    biases = [[0.0, 50.0, 0.0], [0.0, 0.0, 50.0]]
    frozen = ja.FrozenPolicies(other, _with_output_bias(other.init(KEY, FAST), biases))
    table = ja.payoffs(ja.Side(env, [1]), None, heads, frozen, KEY, 3)
    np.testing.assert_array_equal(table.returns[..., 1], 1.5)
    seats = Seats((0, 2), 3, env.action_space(None))
    observation = ja.Observation(jnp.zeros((4, 3, 2)), elapsed=jnp.zeros(4, jnp.int32))
    action, _ = frozen.act(seats, frozen.params(), jnp.zeros(4, int), KEY, observation, ())
    np.testing.assert_array_equal(action, [[2, 1]] * 4)


def test_opponents_play_evaluations_equally_often():
    agent = side_agent(heads, tails, n_evals=8)
    played = agent.eval(KEY, runner=agent.init(KEY, FAST))["info_opponent"]
    np.testing.assert_array_equal(played, [0, 1] * 4)


@pytest.mark.slow
def test_checkpoints_know_their_opponents(tmp_path):
    side_agent(heads, checkpoint_dir=tmp_path).train(KEY, FAST)
    with pytest.raises(ValueError, match=r"its opponents is \['heads'\], and this agent's is"):
        side_agent(tails, checkpoint_dir=tmp_path).restore(mode="last")


def test_weights_of_another_environment_are_no_opponents_of_this_one():
    agent = ja.DiscreteIPPO(Pennies(), None, tiny())
    other = ja.DiscreteIPPO(Coordination(2, 3), None, tiny())
    message = (
        r"^opponent 'late': the runner is of another agent: actor\.params\.Dense_0\.bias is "
        r"\[1, 3\] there and \[1, 2\] in this agent; build the agent of "
    )
    with pytest.raises(ValueError, match=message):
        ja.FrozenPolicies(agent, {"early": agent.init(KEY, FAST), "late": other.init(KEY, FAST)})


class Throttle(ja.Environment):
    """One step: actor 0 earns what actor 1 does."""

    n_actors = 2

    def action_space(self, params):
        return ja.Box(-1.0, 1.0, (1,))

    def reset_env(self, rng, params):
        return jnp.zeros((2, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, rng, state, action, params):
        over = jnp.ones(2, bool)
        return jnp.zeros((2, 1)), state, jnp.full(2, action[1, 0]), over, ~over, {}


def test_actions_of_opponents_lie_within_the_space():
    def too_much(rng, observation):
        return jnp.full((1, 1), 5.0)

    side = ja.Side(Throttle(), (0,), opponents=[too_much])
    agent = ja.ContinuousIPPO(side, None, tiny())
    returns = agent.eval(KEY, n_evals=2, runner=agent.init(KEY, FAST))["returns"]
    np.testing.assert_array_equal(returns, [[1.0], [1.0]])
