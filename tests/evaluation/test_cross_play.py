"""Cross-play: what players earn with partners that they have never met."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.evaluation.payoffs import CrossPlay, cross_play
from jaxagents.ippo.population.members import stack
from tests.agents import FAST, shared_agent
from tests.probes import Coordination

KEY = jax.random.key(0)


class Agree(ja.Environment):
    """One step: all earn 1 if the actors of two halves take the same action."""

    def __init__(self, n_actors):
        self.n_actors = n_actors

    def max_episode_steps(self, params):
        return 1

    def action_space(self, params):
        return ja.Discrete(3)

    def reset_env(self, rng, params):
        return ja.Observation(jnp.zeros((self.n_actors, 1))), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        agree = jnp.all(action == action[0]).astype(jnp.float32)
        ends = jnp.ones(self.n_actors, bool)
        reward = jnp.full(self.n_actors, agree)
        observation = ja.Observation(jnp.zeros((self.n_actors, 1)))
        return observation, state, reward, ends, jnp.zeros_like(ends), {}


class Habits(ja.Opponent):
    """Each member always takes an action of its own."""

    def __init__(self, *actions):
        self._actions = jnp.array(actions)
        self.names = tuple(f"takes {action}" for action in actions)

    def check(self, seats):
        pass

    def act(self, seats, params, member, rng, observation, memory):
        action = jnp.broadcast_to(self._actions[member][:, None], (len(member), len(seats.actors)))
        return action, memory


@pytest.mark.parametrize("n_actors", [2, 3])
def test_players_of_one_convention_agree(n_actors):
    table = cross_play(Agree(n_actors), None, Habits(0, 1, 1), KEY, n_episodes=2)

    np.testing.assert_array_equal(table.mean, [[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    assert table.returns.shape == (3, 3, 2 if n_actors == 2 else 6)
    assert table.self_play == 1.0
    assert table.cross_play == pytest.approx(1 / 3)  # of 6 pairs of different players, 2 agree
    assert table.gap == pytest.approx(2 / 3)
    interval = table.gap_interval
    assert 0.5 <= interval.low < table.gap < interval.high <= 1.0


def test_parts_can_be_named():
    table = cross_play(Agree(3), None, Habits(0, 1), KEY, n_episodes=4, parts=[[0, 2]])
    assert table.returns.shape == (2, 2, 4)


@pytest.mark.slow
def test_members_of_a_population_are_the_players():
    agent = shared_agent(Coordination(), n_steps=1)
    runners = [agent.init(key, FAST) for key in jax.random.split(KEY, 3)]
    runner = stack(runners)
    players = ja.FrozenPolicies(agent, runner, greedy=True)
    assert players.names == ("member 0", "member 1", "member 2")
    table = cross_play(agent.env, None, players, KEY, n_episodes=8)
    one = ja.FrozenPolicies(agent, [agent.member(runner, 1)], greedy=True)
    side = ja.Side(agent.env, [0])
    alone = ja.payoffs(side, None, one, one, KEY, 8)
    np.testing.assert_allclose(table.returns[1, 1], alone.returns[0, 0].mean(axis=-1))


@pytest.mark.parametrize(
    ("env", "players", "message"),
    [
        (Agree(2), Habits(0), r"1 player\(s\) have no others"),
        (Agree(1), Habits(0, 1), "one actor has no partners"),
    ],
)
def test_what_has_no_partners_is_refused(env, players, message):
    with pytest.raises(ValueError, match=message):
        cross_play(env, None, players, KEY)


def test_matrices_are_drawn(tmp_path):
    mean = np.array([[240.0, 3.0], [10.0, 220.0]])
    table = CrossPlay(("seed 0", "seed 1"), np.repeat(mean[:, :, None], 4, axis=2))
    assert table.gap == pytest.approx(230 - 6.5)
    ja.draw_cross_play(table, tmp_path / "matrix.png")
    equal = CrossPlay(("a", "b"), np.ones((2, 2, 1)))
    ja.draw_cross_play(equal, tmp_path / "equal.svg", "No conventions")
    assert (tmp_path / "matrix.png").stat().st_size > 5_000
    assert "No conventions" in (tmp_path / "equal.svg").read_text()
