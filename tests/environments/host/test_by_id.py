"""Ids, wrappers and constructors by name, and errors that say which to use."""

import sys

import gymnasium
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.experiment import Experiment
from tests.environments.host.probes import Stairs

PROBES = "tests.environments.host.probes"
STACK = {"gymnasium.wrappers:FrameStackObservation": {"stack_size": 2}}
FLAT = "gymnasium.wrappers:FlattenObservation"
CONSTANT = 3


class Prices(Stairs):
    """Stairs whose reward is two numbers: the step upwards, and a cost of 1."""

    def step(self, action):
        observation, reward, *others = super().step(action)
        return observation, np.array([reward, -1.0]), *others


def after_a_step_upwards(env):
    """Return the first environment's features and reward in a worker."""
    with env:
        pool = env.make_pool(1, None, has_state=False)
        pool.reset(np.array([13], np.uint32))
        frame = pool.step(np.array([[1]], np.int32), np.zeros(1, np.uint32))
        return frame["features"][0, 0].tolist(), frame["reward"].tolist()


def test_a_constructor_is_called_with_the_arguments_of_the_environment():
    env, params = ja.make(f"gymnasium/{PROBES}:Stairs", top=1.25, n_workers=1)
    assert params is None
    assert (env.name, env.n_actors, env.max_episode_steps) == ("Stairs", 1, None)
    features, reward = after_a_step_upwards(env)
    np.testing.assert_allclose(features, [0.0, 0.0])  # at 1.3 of 1.25 the next episode begins
    assert reward == [[1.0]]


def test_constructors_of_several_agents_and_of_the_parallel_api_work():
    assert ja.make(f"gymnasium/{PROBES}:Crew", limit=3)[0].n_actors == 3
    assert ja.make(f"gymnasium/{PROBES}:Echo")[0].inputs[1]["name"] == "caller_1"


def test_a_constructor_draws_if_it_takes_a_render_mode():
    drawn, _ = ja.make(f"gymnasium/{PROBES}:Drawn", width=6)
    assert drawn.picture is not None
    assert drawn.picture.shape == (10, 6, 3)
    assert ja.make(f"gymnasium/{PROBES}:Stairs")[0].picture is None


def test_an_id_can_be_given_a_success():
    success = ja.Success("height", "heights", "count")
    assert ja.make(f"gymnasium/{PROBES}:Stairs", success=success)[0].success == success


def test_registered_ids_come_before_constructors(monkeypatch):
    monkeypatch.setattr(sys.modules[PROBES], "Clash-v0", Stairs, raising=False)
    gymnasium.register("Clash-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    try:
        env, _ = ja.make(f"gymnasium/{PROBES}:Clash-v0")
    finally:
        gymnasium.registry.pop("Clash-v0")
    assert (env.name, env.observation["features"].shape) == ("Clash-v0", (1, 4))


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        ([STACK], [[0.3, 0], [1.3, 1]]),
        ([STACK, FLAT], [0.3, 0, 1.3, 1]),
        ([FLAT, STACK], [[0.3, 0], [1.3, 1]]),
        ([{"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 1}}], [0, 0]),
        ([], [1.3, 1]),
    ],
    ids=["one", "two", "two in the other order", "limit", "none"],
)
def test_wrappers_are_applied_in_order_around_each_copy(wrappers, expected):
    env, _ = ja.make(f"gymnasium/{PROBES}:Stairs", wrappers=wrappers, n_workers=1)
    features, _ = after_a_step_upwards(env)
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    assert env.name == "Stairs"


def test_wrappers_go_around_registered_ids():
    env, _ = ja.make("gymnasium/CartPole-v1", wrappers=[STACK])
    assert (env.name, env.observation["features"].shape) == ("CartPole-v1", (1, 2, 4))


def test_wrappers_go_around_pettingzoos_environments():
    pytest.importorskip("mpe2")
    wrappers = ["pettingzoo.utils.wrappers:BaseParallelWrapper"]
    env, _ = ja.make("pettingzoo/mpe2:simple_spread_v3", wrappers=wrappers)
    assert type(env.open().env).__name__ == "BaseParallelWrapper"


def test_pictures_are_those_of_the_wrapped_environment():
    env, _ = ja.make(
        f"gymnasium/{PROBES}:Drawn",
        width=5,
        wrappers=[{"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 2}}],
    )
    pool = env.make_pool(1, None, has_state=False, n_drawn=1)
    seeds = np.zeros(1, np.uint32)
    with env:
        pool.reset(seeds)
        over = [pool.step(np.array([[1]], np.int32), seeds)["over"].tolist() for _ in range(2)]
        assert over == [[False], [True]]
        assert pool.step(np.array([[1]], np.int32), seeds)["picture"].shape == (1, 10, 5, 3)


def test_the_time_limit_is_in_steps_of_the_wrapped_environment():
    skip = {"gymnasium.wrappers:MaxAndSkipObservation": {"skip": 4}}
    limit = {"gymnasium.wrappers:TimeLimit": {"max_episode_steps": 1000}}
    for wrappers, expected in (([skip], 50), ([limit], 200), ([skip, limit], 50)):
        env, _ = ja.make("gymnasium/MountainCar-v0", wrappers=wrappers)
        assert env.max_episode_steps == expected


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        (FLAT, "give a list such as"),
        (["FlattenObservation"], "'FlattenObservation' names no module"),
        ([":Wrap"], "the wrapper ':Wrap' names no module by its full name; entries are as in"),
        ([".mine:Wrap"], r"the wrapper '\.mine:Wrap' names no module by its full name; entries"),
        ([{FLAT: {}, "another:One": {}}], "entries are as in"),
        ([{FLAT: [1]}], "entries are as in"),
        (["no_such_package:One"], "no_such_package:One cannot be imported: No module named"),
        (["gymnasium.wrappers:FlatenObservation"], "no wrapper .*Did you mean FlattenObservation"),
        ([f"{__name__}:CONSTANT"], "CONSTANT is 3, which cannot be called"),
        (["builtins:str"], "the wrapper builtins:str returns str, which is not an environment"),
        (
            [{"gymnasium.wrappers:FrameStackObservation": {"stacks": 2}}],
            "FrameStackObservation raised TypeError: .*unexpected keyword argument 'stacks'",
        ),
    ],
)
def test_a_wrapper_that_cannot_be_used_is_named_in_one_line(wrappers, message):
    with pytest.raises(ValueError, match=message) as raised:
        ja.make("gymnasium/CartPole-v1", wrappers=wrappers)
    assert "\n" not in str(raised.value)


def test_a_vector_cannot_be_wrapped():
    with pytest.raises(ValueError, match=r"wrappers with vectorized=True; .* leave out"):
        ja.make("gymnasium/CartPole-v1", wrappers=[FLAT], vectorized=True)


def test_a_vector_of_rewards_is_refused_or_summed_with_weights():
    message = r"Prices returned a reward of shape \(2,\), not one number; .*reward_weights"
    with pytest.raises(ValueError, match=message):
        ja.HostEnvironment(Prices)
    env, _ = ja.make(f"gymnasium/{__name__}:Prices", reward_weights=[2, 0.5], n_workers=1)
    assert after_a_step_upwards(env)[1] == [[2 * 1.0 - 0.5]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0, 3.0], r"a reward of shape \(2,\), for which reward_weights has 3 numbers"),
        (["a", "b"], "give a list of finite numbers"),
        ([1.0, float("nan")], "give a list of finite numbers"),
        (2.0, "give a list of finite numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        ja.make(f"gymnasium/{__name__}:Prices", reward_weights=weights)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gymnasium/CartPol-v1", "is not registered. Did you mean CartPole-v1 or CartPole-v0"),
        ("gymnasium/MiniGrid-Empty-5x5-v0", "as in gymnasium/minigrid:MiniGrid-Empty-5x5-v0"),
        ("gymnasium/nowhere/Stairs-v0", "gymnasium/nowhere/Stairs-v0 is not registered"),
        (f"gymnasium/{PROBES}:Stars", f"{PROBES} neither registers Stars nor has a constructor"),
        (f"gymnasium/{__name__}:CONSTANT", "is 3, neither a registered id nor a constructor"),
        ("gymnasium/:CartPole-v1", "gymnasium/:CartPole-v1 names no module before the colon"),
        (
            "gymnasium/.here:Stairs",
            r"/\.here:Stairs names no module .*; write its full name, as in",
        ),
        ("pettingzoo/:simple_spread_v3", "pettingzoo/:simple_spread_v3 names no package"),
        ("pettingzoo/.here:party", r"/\.here:party names no package by its full name; write"),
        (f"pettingzoo/{PROBES}:Party", f"{PROBES} has no environment 'Party'"),
        ("pettingzoo/tests.environments.host:probes", "probes has neither parallel_env nor env"),
    ],
)
def test_an_unknown_id_is_explained(env_id, message):
    with pytest.raises(ValueError, match=message):
        ja.make(env_id)


@pytest.fixture
def absent():
    """Register environments whose packages are missing."""
    gymnasium.register("tests/Absent-v0", entry_point="no_such_package:Env")
    gymnasium.register("tests/AbsentExtra-v0", entry_point="gymnasium.envs.some_extra.module:Env")
    yield
    for name in ("tests/Absent-v0", "tests/AbsentExtra-v0"):
        gymnasium.registry.pop(name)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("no_such_package:Stairs-v0", "no_such_package, which is not installed"),
        ("tests/Absent-v0", "no_such_package, which is not installed"),
        ("tests/AbsentExtra-v0", r'installed: pip install "gymnasium\[some-extra\]"'),
    ],
)
def test_a_missing_package_is_named(absent, env_id, message):
    with pytest.raises(ImportError, match=message):
        ja.make(f"gymnasium/{env_id}")


def test_the_option_that_finds_a_module_in_the_working_directory_is_named(tmp_path, monkeypatch):
    (tmp_path / "mine_of_tests.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    remedy = "mine_of_tests.*It is in the working directory: give --import mine_of_tests[.]$"
    for make in (
        lambda: ja.make("gymnasium/mine_of_tests:Plain"),
        lambda: ja.make("pettingzoo/mine_of_tests:plain_v0"),
        lambda: ja.make("gymnasium/CartPole-v1", wrappers=["mine_of_tests:Noop"]),
    ):
        with pytest.raises((ImportError, ValueError), match=remedy):
            make()


def test_a_module_that_was_found_is_not_said_to_be_missing(tmp_path, monkeypatch):
    (tmp_path / "within_of_tests.py").touch()
    (tmp_path / "broken_of_tests.py").write_text("import json.within_of_tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"json\.within_of_tests, which is not installed\.$"):
        ja.make("gymnasium/broken_of_tests:Plain")
    (tmp_path / "broken_of_tests.py").write_text("from broken_of_tests import nothing")
    with pytest.raises(ValueError, match=r"cannot be imported: cannot import name((?!give).)*$"):
        ja.make("gymnasium/CartPole-v1", wrappers=["broken_of_tests:Noop"])


def test_another_version_of_pettingzoos_environment_is_suggested(tmp_path, monkeypatch):
    package = tmp_path / "zoo_of_tests"
    package.mkdir()
    for name in ("__init__", "pursuit_v5", "pursuit"):
        (package / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    message = "zoo_of_tests has no environment 'pursuit_v4'. Did you mean pursuit_v5[?]$"
    with pytest.raises(ValueError, match=message):
        ja.make("pettingzoo/zoo_of_tests:pursuit_v4")


@pytest.mark.slow
def test_a_run_of_a_file_with_wrappers_is_resumed(tmp_path):
    (tmp_path / "config.yaml").write_text(f"""
name: wrapped
env: gymnasium/{PROBES}:Stairs
env_kwargs:
  n_workers: 1
  limit: 3
  wrappers:
    - gymnasium.wrappers:FlattenObservation
    - gymnasium.wrappers:FrameStackObservation: {{stack_size: 2}}
agent:
  {{n_steps: 1, batch_size: 2, minibatch_size: 2, rollout_length: 4, eval_frequency: 1, n_evals: 2,
   max_episode_steps: 3, progress_bar: false}}
evaluation: {{n_evals: 2}}
runs_dir: {tmp_path / "runs"}
""")
    experiment = Experiment(load_config(tmp_path / "config.yaml"))
    experiment.train()
    experiment.agent.env.close()
    resumed = Experiment.of_run(experiment.directory, ["--agent.n_steps", "2"])
    assert resumed.resume()["training"]["n_updates_done"] == 2
    resumed.agent.env.close()
    assert resumed.agent.env.observation["features"].shape == (1, 2, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Box high's precision lowered")
def test_minigrid_and_mo_gymnasium_play_by_id():
    pytest.importorskip("minigrid")
    env, _ = ja.make(
        "gymnasium/minigrid:MiniGrid-Empty-5x5-v0",
        scale_images=False,
        wrappers=[
            "minigrid.wrappers:ImgObsWrapper",
            {"gymnasium.wrappers:FrameStackObservation": {"stack_size": 4}},
        ],
    )
    assert env.observation["features"] == ((1, 7, 7, 12), "uint8", None)
    pytest.importorskip("mo_gymnasium")
    env, _ = ja.make(
        "gymnasium/mo_gymnasium:deep-sea-treasure-v0", reward_weights=[1.0, 0.5], n_workers=1
    )
    with env:
        pool = env.make_pool(1, None, has_state=False)
        pool.reset(np.zeros(1, np.uint32))
        frame = pool.step(np.array([[1]], np.int32), np.zeros(1, np.uint32))
    np.testing.assert_allclose(frame["reward"], [[0.7 - 0.5]], rtol=1e-6)  # down to a treasure
