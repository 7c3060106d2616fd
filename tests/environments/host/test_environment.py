import functools
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.adapters import adapt
from jaxagents.environments.registry import describe
from jaxagents.environments.spaces import Discrete
from tests.agents import FAST, assert_trees_equal, shared_agent
from tests.environments.host.probes import Echo, Observed, Party, Stairs
from tests.environments.host.processes import workers


def test_a_constructor_of_the_users_own_is_enough():
    env = ja.HostEnvironment(lambda: Party([("host_0",)], masked=True))

    assert (env.name, env.n_actors, env.action_space()) == ("party", 3, Discrete(3))
    assert (env.teams, env.time_limits, env.max_episode_steps) == ([0, 0, 1], "bootstrap", None)
    shapes = {name: (field.shape, field.dtype) for name, field in env.observation.items()}
    assert shapes == {
        "features": ((3, 3), "float32"),
        "action_mask": ((3, 3), "bool"),
        "global_state": ((2,), "float32"),
    }


def test_what_the_library_does_not_say_can_be_given():
    env = ja.HostEnvironment(
        lambda: Party([("host_0",)]),
        teams=[0, 1, 1],
        time_limits="terminal",
        max_episode_steps=5,
    )
    assert (env.teams, env.time_limits, env.max_episode_steps) == ([0, 1, 1], "terminal", 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_workers": -1}, "n_workers=-1"),
        ({"timeout": 0.0}, "timeout=0"),
        ({"timeout": "60"}, "timeout='60' s; it must be positive"),
        ({"on_worker_failure": "ignore"}, "choose 'raise' or 'restart'"),
        ({"teams": [0, 1]}, "2 teams for 1 actor"),
        ({"explored_steps": -1}, "explored_steps=-1"),
        ({"max_episode_steps": 0}, "max_episode_steps=0 is too small; it must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ja.HostEnvironment(Stairs, **settings)


@pytest.mark.parametrize("name", ["n_workers", "explored_steps", "max_episode_steps"])
@pytest.mark.parametrize("value", ["2", 2.0, True])
def test_counts_that_are_no_integers_are_refused(name, value):
    with pytest.raises(TypeError, match=f"{name}={value!r} is not an integer"):
        ja.HostEnvironment(Stairs, **{name: value})


def test_an_observation_outside_its_space_is_refused_at_once():
    wrong = functools.partial(Observed, spaces.Box(0, 1, (2,)), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"Observed returned an observation of shape \(3,\)"):
        ja.HostEnvironment(wrong)


def test_workers_end_with_the_block_of_the_environment():
    with ja.HostEnvironment(Echo, n_workers=2) as env:
        agent = shared_agent(env)
        agent.init(jax.random.key(0), FAST)
        assert len(workers()) == 2
    assert workers() == set()


def test_gymnasiums_environments_are_made_by_id():
    env, params = ja.make("gymnasium/CartPole-v1", sutton_barto_reward=True, time_limits="terminal")

    assert params is None
    assert (env.name, env.n_actors, env.max_episode_steps) == ("CartPole-v1", 1, 500)
    assert env.time_limits == "terminal"
    info = describe("gymnasium/Pendulum-v1")
    assert (info.n_actors, info.observation_shape) == (1, (3,))
    assert (info.action_space, info.truncation_rule) == (
        "Box(1,) from -2 to 2",
        "time limit: 200 steps",
    )


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        ("gymnasium/CartPole-v9", {}, "gymnasium/CartPole-v9 cannot be made: .*CartPole.*v0"),
        ("gymnasium/CartPole-v1", {"mass": 3}, "cannot be constructed with mass=3"),
        (
            "gymnasium/CartPole-v1",
            {"wrappers": ["gymnasium.wrappers:TimeLimt"]},
            r"no wrapper 'TimeLimt'\. Did you mean TimeLimit[^?]*\?$",
        ),
        ("pettingzoo/simple_spread_v3", {}, "write pettingzoo/mpe2:simple_spread_v3"),
    ],
)
def test_unknown_names_and_arguments_are_refused(env_id, env_kwargs, message):
    with pytest.raises(ValueError, match=message):
        ja.make(env_id, **env_kwargs)


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpe2", None)
    with pytest.raises(ImportError, match=r'mpe2, which is not installed; .*-e "\.\[pettingzoo\]"'):
        ja.make("pettingzoo/mpe2:simple_spread_v3")


@pytest.fixture
def registered():
    """Register an environment as an import in this process does, which workers do not repeat."""
    gymnasium.register("tests/Stairs-v0", entry_point=f"{Stairs.__module__}:Stairs")
    yield "tests/Stairs-v0"
    gymnasium.registry.pop("tests/Stairs-v0")


def test_workers_know_what_is_registered_in_the_training_process(registered):
    env, _ = ja.make(f"gymnasium/{registered}", n_workers=1)
    with env:
        pool = env.make_pool(1, None, has_state=False)
        assert pool.reset(np.zeros(1, np.uint32))["features"].shape == (1, 1, 2)


def test_a_lambda_of_an_unregistered_id_fails_in_workers_with_the_remedy(registered):
    env = ja.HostEnvironment(lambda: gymnasium.make(registered), n_workers=1)
    with env, pytest.raises(HostEnvironmentError) as raised:
        env.make_pool(1, None, has_state=False).reset(np.zeros(1, np.uint32))
    (line, *_) = str(raised.value).splitlines()
    assert "NamespaceNotFound" in line
    assert "let make_env import that module, or name it in the id, gymnasium.make(" in line


def test_pettingzoos_environments_are_made_by_package_and_module():
    pytest.importorskip("mpe2")
    env, params = ja.make("pettingzoo/mpe2:simple_tag_v3", num_good=2)

    assert params is None
    assert (env.name, env.n_actors, env.max_episode_steps) == ("simple_tag_v3", 5, 25)
    assert (env.teams, env.time_limits) == ([0, 0, 0, 1, 1], "terminal")
    with pytest.raises(ValueError, match="mpe2 has no environment 'simple_tog_v3'"):
        ja.make("pettingzoo/mpe2:simple_tog_v3")


@pytest.mark.parametrize("name", ["simple_tag_v3", "simple_speaker_listener_v4"])
def test_environments_without_their_checking_wrappers_play_as_with_them(name):
    module = pytest.importorskip(f"mpe2.{name}")
    games = ja.make(f"pettingzoo/mpe2:{name}")[0].open(), adapt(module.parallel_env())
    n_actors = games[0].arrays.n_actors
    for game in games:
        game.explore(32)
    for step in range(60):
        if step % 25 == 0:
            seen = [game.reset(seed=step) for game in games]
        else:
            action = (step + np.arange(n_actors)) % 3
            seen = [game.step(action) for game in games]
        assert_trees_equal(*seen)


def test_an_environment_that_is_not_wrapped_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"as jaxagents.HostEnvironment\(make_env\)"):
        ja.DiscreteIPPO(Stairs(), None, ja.AgentConfig(n_steps=1))


def test_an_environment_can_be_played_by_hand():
    env = ja.HostEnvironment(Echo, n_workers=1, time_limits="terminal")
    agent = shared_agent(env)
    with env:
        runner = agent.init(jax.random.key(0), FAST)
    game = env.open()
    observation, _ = game.reset(seed=3)
    observation = ja.Observation(observation.features, observation.action_mask, elapsed=np.int32(0))
    action = np.asarray(agent.policy(runner, observation))
    cues = np.argmax(observation.features, axis=-1)
    np.testing.assert_array_equal(game.step(action).reward, action == cues)


@pytest.mark.slow
def test_an_agent_trains_on_cartpole():
    env, params = ja.make("gymnasium/CartPole-v1")
    config = ja.AgentConfig(
        n_steps=40, batch_size=16, rollout_length=64, eval_frequency=40, progress_bar=False
    )
    with env:
        agent = ja.DiscreteIPPO(env, params, config)
        _, metrics = agent.train(jax.random.key(0), ja.HyperParameters())
    assert np.mean(metrics["returns"][-1]) > 5 * np.mean(metrics["returns"][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "sharing"),
    [
        ("pettingzoo/mpe2:simple_spread_v3", "shared"),
        ("pettingzoo/mpe2:simple_tag_v3", "team"),
        ("pettingzoo/mpe2:simple_speaker_listener_v4", "independent"),
    ],
)
def test_an_agent_trains_on_pettingzoos_environments(env_id, sharing):
    pytest.importorskip("mpe2")
    env, params = ja.make(env_id)
    config = ja.AgentConfig(
        n_steps=2,
        batch_size=4,
        minibatch_size=4,
        rollout_length=50,
        eval_frequency=2,
        n_evals=2,
        parameter_sharing=sharing,
        progress_bar=False,
    )
    with env:
        _, metrics = ja.DiscreteIPPO(env, params, config).train(
            jax.random.key(0), ja.HyperParameters()
        )
    assert np.all(np.isfinite(metrics["returns"]))
    np.testing.assert_array_equal(metrics["episode_lengths"], 25)


def test_turns_are_masks_and_waiting_actors_have_one_action():
    pytest.importorskip("pettingzoo")
    env, _ = ja.make("pettingzoo/pettingzoo.classic:tictactoe_v3")
    adapter = env.open()
    adapter.explore(32)
    observation, _ = adapter.reset(0)
    assert observation.features.shape == (2, 3, 3, 2)
    assert observation.action_mask.sum(axis=1).tolist() == [9, 1]
    assert ja.Observation(*observation).has_turn.tolist() == [True, False]
    outcome = adapter.step(np.array([4, 0]))
    assert outcome.observation.action_mask.sum(axis=1).tolist() == [1, 8]
    for action in ([0, 3], [0, 0], [0, 5], [8, 0]):  # the first player fills the diagonal
        outcome = adapter.step(np.array(action))
    assert outcome.reward.tolist() == [1, -1]
    assert outcome.terminated.tolist() == [True, True]
    adapter.close()


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        (gymnasium.wrappers.NormalizeObservation, "normalize_observations=True"),
        (gymnasium.wrappers.NormalizeReward, "normalize_values=True"),
    ],
)
def test_wrappers_with_statistics_of_their_own_are_warned_of(wrapper, instead):
    def make_env():
        return gymnasium.wrappers.TimeLimit(wrapper(gymnasium.make("CartPole-v1")), 5)

    with pytest.warns(UserWarning, match=rf"{wrapper.__name__}, whose running .*{instead}"):
        ja.HostEnvironment(make_env)


def test_the_import_and_a_construction_leave_the_environment_variables_alone():
    program = (
        "import os; before = dict(os.environ)\n"
        "import jaxagents as ja; from tests.environments.host.probes import Stairs\n"
        "ja.HostEnvironment(Stairs, n_workers=0)\n"
        "assert dict(os.environ) == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
