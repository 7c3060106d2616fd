"""Host environments as compiled code and agents play them."""

import contextlib
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxagents as ja
from jaxagents.environments.host import HostEnvironmentError
from jaxagents.environments.host.batch import HostEnvironmentBatch
from jaxagents.environments.time_limits import TimeLimit
from tests.agents import (
    FAST,
    assert_trees_equal,
    begin,
    collect,
    log_ratio,
    opinionated_runner,
    shared_agent,
    tiny,
    trained,
)
from tests.environments.host.probes import Echo, Faulty, Party, Stairs
from tests.environments.host.processes import workers

ALL = ("host_0", "host_1", "guest_0")
BOOTSTRAP = TimeLimit(n_steps=None, is_terminal=False, is_observed=False)
ENVIRONMENTS = {}


def host(make_env, n_workers=1, **settings):
    """Return the environment of a constructor: the same one for all tests."""
    key = (str(make_env), n_workers, *settings.items())
    if key not in ENVIRONMENTS:
        ENVIRONMENTS[key] = ja.HostEnvironment(make_env, n_workers=n_workers, **settings)
    return ENVIRONMENTS[key]


@pytest.fixture(autouse=True)
def _no_worker_is_left():
    yield
    for environment in ENVIRONMENTS.values():
        environment.close()
    assert workers() == set()


def batch_of(make_env, max_episode_steps=None, time_limit=BOOTSTRAP, **options):
    environment = host(make_env, **options.pop("settings", {}))
    return HostEnvironmentBatch(environment, max_episode_steps, time_limit, **options)


def play(batch, *actions, n_envs=2, seed=0):
    """Reset, and take the same actions in every environment; return what was seen."""
    observation, state = jax.jit(batch.reset, static_argnums=1)(jax.random.key(seed), n_envs)
    take, steps = jax.jit(batch.step), []
    for i, action in enumerate(actions):
        action = jnp.broadcast_to(jnp.asarray(action, jnp.int32), (n_envs, batch.n_actors))
        step, state = take(jax.random.key(100 + i), state, action)
        steps.append(step)
    return observation, steps, state


def test_a_truncated_step_keeps_the_observation_before_the_reset():
    first, (_, step), state = play(batch_of(functools.partial(Stairs, limit=2)), 1, 1)

    np.testing.assert_array_equal(step.truncated, True)
    np.testing.assert_array_equal(step.terminated, False)
    np.testing.assert_array_equal(step.episode_over, True)
    heights = first.features[:, 0, 0]
    np.testing.assert_allclose(step.final_observation.features[:, 0, 0], heights + 2, rtol=1e-6)
    np.testing.assert_array_equal(step.final_observation.features[:, 0, 1], 2)
    np.testing.assert_array_equal(step.observation.features[:, 0, 1], 0)
    np.testing.assert_array_equal(state.episode_steps, 0)
    np.testing.assert_array_equal(state.active, True)


def test_without_a_reset_the_final_observation_is_the_next_one():
    _, (step,), state = play(batch_of(Stairs), 1)
    assert_trees_equal(step.final_observation, step.observation)
    np.testing.assert_array_equal(state.episode_steps, 1)


def test_actors_are_active_until_their_own_end():
    plan = [ALL, ("host_0", "guest_0"), ALL, ALL]
    _, steps, _ = play(batch_of(functools.partial(Party, plan)), 0, 0, 0, n_envs=1)
    active = [step.active[0].tolist() for step in steps]
    assert active == [[True, True, True], [True, False, True], [True, True, True]]
    assert [step.terminated[0, 1].item() for step in steps] == [True, False, False]


def test_the_environments_own_state_the_actors_index_and_the_time_are_observed():
    batch = batch_of(
        functools.partial(Party, [ALL] * 9),
        time_limit=TimeLimit(n_steps=4, is_terminal=True, is_observed=True),
        agent_id=True,
        global_state=True,
    )
    first, (step,), _ = play(batch, 0)

    assert batch.observation.features.shape == (3, 3 + 3 + 1)
    np.testing.assert_array_equal(first.features[0, 1], [2, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(step.observation.features[0, 1], [2, 1, 0, 0, 1, 0, 0.25])
    np.testing.assert_array_equal(step.observation.global_state[0], [1, 3, 0.25])


def test_the_random_key_decides_all_resets():
    batch = batch_of(functools.partial(Stairs, limit=1))
    first, again, other = (play(batch, 0, 1, n_envs=8, seed=seed)[:2] for seed in (0, 0, 1))
    assert_trees_equal(first, again)
    assert not np.array_equal(first[0].features, other[0].features)
    heights = first[1][0].observation.features[:, 0, 0]
    assert len(np.unique(heights)) > 1


def test_restarts_are_counted_in_the_infos(tmp_path):
    once = tmp_path / "once"
    make_env = functools.partial(Faulty, "kill", once)
    batch = batch_of(make_env, settings={"on_worker_failure": "restart", "n_workers": 2})
    _, state = batch.reset(jax.random.key(0), 2)
    step = functools.partial(batch.step, jax.random.key(1), action=jnp.zeros((2, 1), jnp.int32))
    before, state = step(state=state)
    once.touch()
    after, state = step(state=state)

    assert before.info["restarts"].tolist() == [0, 0]
    assert sorted(after.info["restarts"].tolist()) == [0, 1]
    assert batch.n_restarts == 1
    np.testing.assert_array_equal(after.truncated[:, 0], after.info["restarts"] == 1)
    np.testing.assert_array_equal(state.active, True)


def test_a_state_can_be_continued_only_where_it_left_the_workers():
    batch = batch_of(Stairs)
    _, _, state = play(batch, 0)
    assert batch.can_continue(state)
    assert not batch.for_evaluation().can_continue(state)
    _, _, later = play(batch, 0, 1)
    assert not batch.can_continue(state)
    assert batch.can_continue(later)
    batch._env.close()
    assert not batch.can_continue(later)


ECHO = {"rollout_length": 6, "batch_size": 16, "minibatch_size": 4, "eval_frequency": 15}


def echo_agent():
    return shared_agent(host(Echo), n_steps=30, n_evals=32, **ECHO)


@pytest.mark.slow
def test_an_agent_learns_the_optimum():
    agent = echo_agent()
    runner, metrics = trained(agent)
    before, after = (
        np.mean(agent.eval(jax.random.key(1), 64, greedy=False, runner=each)["returns"])
        for each in (begin(agent), runner)
    )
    assert before == pytest.approx(1.5, abs=0.3)  # of 3
    assert after > 2.8
    assert metrics["returns"].shape == (3, 32, 2)
    np.testing.assert_array_equal(metrics["episode_lengths"], 3)
    np.testing.assert_array_equal(metrics["truncated"], 1)


@pytest.mark.slow
def test_equal_seeds_train_to_equal_runners():
    runner, metrics = trained(echo_agent())
    assert_trees_equal(echo_agent().train(jax.random.key(0), FAST), (runner, metrics))


def test_the_first_minibatch_has_ratio_one_and_no_divergence():
    agent = echo_agent()
    runner, transitions, batch = collect(agent, begin(agent), jax.random.key(1))
    ratio = log_ratio(agent, runner, batch)
    np.testing.assert_allclose(ratio, 0, atol=1e-5)
    np.testing.assert_allclose(jnp.expm1(ratio) - ratio, 0, atol=1e-9)
    assert np.asarray(transitions.truncated).sum() == 6 // 3 * 16 * 2


@pytest.mark.slow
def test_evaluations_leave_the_training_environments_alone():
    agent = echo_agent()

    def two_updates(evaluates):
        runner, _ = agent.step(begin(agent))
        if evaluates:
            agent.eval(jax.random.key(5), runner=runner)
            agent.eval(jax.random.key(6), n_evals=3, runner=runner)
        return agent.step(runner)

    assert_trees_equal(two_updates(evaluates=True), two_updates(evaluates=False))


def test_evaluations_of_one_key_are_equal():
    agent = echo_agent()
    runner = opinionated_runner(agent)
    first, again = (agent.eval(jax.random.key(5), runner=runner) for _ in range(2))
    assert_trees_equal(first, again)


def test_whole_episodes_can_be_recorded():
    agent = echo_agent()
    (episode,) = agent.record(jax.random.key(5), runner=trained(agent)[0])
    assert (episode.states, episode.n_steps, episode.n_actors) == (None, 3, 2)
    cues = np.argmax(episode.observation.features[:-1, :, :2], axis=-1)
    np.testing.assert_array_equal(episode.reward, episode.action == cues)


@pytest.mark.slow
@pytest.mark.parametrize("is_closed", [True, False], ids=["workers gone", "workers gone on"])
def test_a_runner_without_its_environments_begins_new_episodes(is_closed):
    agent = echo_agent()
    runner, _ = agent.step(begin(agent))
    if is_closed:
        agent.env.close()
    else:
        agent.step(runner)
    again, _ = agent.step(runner)
    assert int(again.n_updates_done) == 2
    runner, metrics = agent.train(None, FAST, runner=again)
    assert int(runner.n_updates_done) == 30
    assert np.mean(metrics["returns"][-1]) > 2.9


@pytest.mark.slow
def test_a_run_resumes_with_new_episodes(tmp_path):
    config = tiny(n_steps=4, n_evals=2, **ECHO | {"eval_frequency": 2})
    config = ja.AgentConfig(**{**vars(config), "checkpoint_dir": tmp_path / "run"})
    env = host(Echo)
    short = ja.AgentConfig(**{**vars(config), "n_steps": 2})
    ja.DiscreteIPPO(env, None, short).train(jax.random.key(0), FAST)
    env.close()
    runner, metrics = ja.DiscreteIPPO(env, None, config).resume()
    assert int(runner.n_updates_done) == 4
    assert metrics["returns"].shape[0] == 3


@pytest.mark.slow
def test_a_fault_is_raised_by_the_public_method_with_its_traceback(caplog):
    sizes = {"n_steps": 2, "eval_frequency": 2, "max_episode_steps": 5}
    agent = shared_agent(host(functools.partial(Faulty, "raise")), **sizes)
    message = r"environment \d at step \d+ raised ZeroDivisionError: the stairs are broken"
    with pytest.raises(HostEnvironmentError, match=message) as refusal:
        agent.train(jax.random.key(0), FAST)
    assert "in step" in str(refusal.value)
    runner = agent.init(jax.random.key(0), FAST)
    with pytest.raises(HostEnvironmentError, match=message):
        agent.step(runner)
    with pytest.raises(HostEnvironmentError, match=message):
        agent.eval(jax.random.key(0), greedy=False, runner=runner)
    with pytest.raises(HostEnvironmentError, match=message):
        agent.record(jax.random.key(0), greedy=False, runner=runner)
    assert workers() == set()
    assert caplog.text == ""  # jax would log each callback that raises
    assert refusal.value.__suppress_context__


@pytest.mark.slow
def test_a_run_with_checkpoints_raises_the_fault_and_resumes(tmp_path):
    once = tmp_path / "once"
    env = host(functools.partial(Faulty, "kill", once))
    shapes = vars(tiny(n_steps=3, n_evals=1, eval_frequency=1, max_episode_steps=5))

    def break_after_the_first_update(evaluation):
        if evaluation.n_updates_done == 1:
            once.touch()

    def make_agent(*callbacks):
        config = ja.AgentConfig(**{**shapes, "checkpoint_dir": tmp_path / "run"})
        return ja.DiscreteIPPO(env, None, config, callbacks=callbacks)

    with pytest.raises(HostEnvironmentError, match="ended its worker process"):
        make_agent(break_after_the_first_update).train(jax.random.key(0), FAST)
    assert env.process_ids == []
    runner, metrics = make_agent().resume()
    assert int(runner.n_updates_done) == 3
    assert metrics["n_updates_done"].tolist() == [0, 1, 2, 3]


def test_training_cannot_be_vmapped():
    with pytest.raises(ValueError, match="train once per seed"):
        jax.vmap(echo_agent().train, in_axes=(0, None))(jax.random.split(jax.random.key(0)), FAST)


def test_ctrl_c_does_not_wait_for_workers_that_are_stuck():
    batch = batch_of(functools.partial(Faulty, "hang"))
    batch.reset(jax.random.key(0), 1)
    pool = batch._pool

    def step():
        with contextlib.suppress(HostEnvironmentError):  # its worker is killed
            pool.step(np.full((1, 1), 2, np.int32), np.zeros(1, np.uint32))

    thread = threading.Thread(target=step)
    thread.start()
    while not pool._arrays["at_work"].any():
        thread.join(0.01)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), batch.raising_faults():
        raise KeyboardInterrupt
    assert time.monotonic() - began < 4
    assert not pool.is_open
    assert workers() == set()
    thread.join(60)


def test_ctrl_c_within_a_call_leaves_workers_no_more_time(monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    batch, seconds = batch_of(Stairs), []
    _, state = batch.reset(jax.random.key(0), 1)
    monkeypatch.setattr(batch._pool, "step", interrupt)
    monkeypatch.setattr(batch, "close", seconds.append)
    with pytest.raises(KeyboardInterrupt), batch.raising_faults():
        batch.step(jax.random.key(1), state, jnp.zeros((1, 1), jnp.int32))
    assert seconds == [0.5]


def test_a_program_that_outlives_ctrl_c_starts_no_workers():
    batch = batch_of(Stairs)
    with pytest.raises(KeyboardInterrupt), batch.raising_faults():
        raise KeyboardInterrupt
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(batch.reset(jax.random.key(0), 1))
    assert workers() == set()
    with batch.raising_faults():
        batch.reset(jax.random.key(0), 1)
    assert len(workers()) == 1
