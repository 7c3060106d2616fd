"""Mistakes raise errors of one line, before anything is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxagents as ja
from tests.agents import FAST, TINY, WALK, begin, shared_agent, tiny
from tests.probes import Aim


class Constant(nn.Module):
    """A network whose output has a fixed width."""

    width: int

    @nn.compact
    def __call__(self, features):
        return nn.Dense(self.width)(features)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ja.DiscreteIPPO(Aim(), None, TINY), TypeError, "use jaxagents.ContinuousIPPO"),
        (lambda: ja.ContinuousIPPO(WALK, None, TINY), TypeError, "use jaxagents.DiscreteIPPO"),
        (
            lambda: ja.ContinuousIPPO(Aim(2, -np.inf, np.inf), None, tiny(squash=True)),
            ValueError,
            "use squash=False",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(squash=True)),
            ValueError,
            "squash=True bounds continuous actions, but Walk has .*; use squash=False",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(parameter_sharing=(0, 1, 1))),
            ValueError,
            "names 3 actors, but the environment has 2",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(actor_network=Constant(5))),
            ValueError,
            r"actor_network maps .* \[2, 3, 5\]; the environment needs \[2, 3, 3\]",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(critic_network=Constant(1))),
            ValueError,
            r"critic_network maps .* \[2, 3, 1\]; the environment needs \[2, 3\]",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(parameter_sharing="team")),
            ValueError,
            "parameter_sharing='team', but the environment names no teams; give a policy index",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(shaped_reward_steps=9)),
            ValueError,
            "shaped_reward_steps=9, but Walk has no shaped reward; leave it None",
        ),
        (lambda: ja.DiscreteIPPO(object(), None, TINY), TypeError, "has no n_actors"),
        (lambda: ja.DiscreteIPPO(WALK, TINY, None), TypeError, "config is NoneType; give Disc"),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(optimizer=lambda: optax.sgd(0.1))),
            TypeError,
            "optimizer is a function of a network's OptimizerParams, .* it fails: .* 0 positional",
        ),
        (
            lambda: ja.DiscreteIPPO(WALK, None, tiny(optimizer=lambda params: None)),
            TypeError,
            "optimizer returns None, which is no optax.GradientTransformation; return one",
        ),
    ],
)
def test_an_agent_that_does_not_fit_its_environment_is_refused_at_construction(
    build, error, message
):
    with pytest.raises(error, match=message) as raised:
        build()
    assert "\n" not in str(raised.value)


def test_numbers_of_64_bits_are_refused_at_construction():
    with jax.enable_x64(True), pytest.raises(ValueError, match="switch it off") as raised:
        ja.DiscreteIPPO(WALK, None, TINY)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("hyperparams", "message"),
    [
        (FAST.replace(gamma=1.5), "gamma=1.5 is out of range; it must be between 0 and 1"),
        (FAST.replace(ent_coeff=-0.1), "ent_coeff=-0.1"),
        (FAST.replace(eps_clip=float("nan")), "eps_clip=nan"),
        (FAST.replace(gae_lambda=jnp.zeros(3)), r"gae_lambda has shape \(3,\)"),
        (
            FAST.replace(actor_optimizer_params=ja.OptimizerParams(learning_rate=-1.0)),
            "actor_optimizer_params.learning_rate=-1.0",
        ),
    ],
)
def test_hyperparameters_out_of_range_are_refused_before_tracing(hyperparams, message):
    agent = shared_agent()
    for entry in (agent.train, agent.init):
        with pytest.raises(ValueError, match=message):
            entry(jax.random.key(0), hyperparams)


def test_parameters_of_optimizers_are_named_where_they_belong():
    message = r"actor_optimizer_params=jaxagents.OptimizerParams\(grad_clip=0.1\)"
    for give in (ja.HyperParameters, FAST.replace):
        with pytest.raises(TypeError, match=message):
            give(grad_clip=0.1)


def test_a_learning_rate_of_both_replaces_no_rate_of_one():
    message = "learning_rate=0.1 is that of both optimizers, but actor_optimizer_params is given"
    with pytest.raises(ValueError, match=message):
        FAST.replace(learning_rate=0.1)


class Returning(ja.Environment):
    """An environment of which all that agents check is given."""

    def __init__(self, n_actors=1, width=2, n_actions=2, info=None, teams=None, reward=1.0):
        self.n_actors, self.info, self.teams = n_actors, info or {}, teams
        self._reward = jnp.full(1, reward)
        self._width, self._n_actions = width, n_actions

    def action_space(self, params):
        return ja.Discrete(self._n_actions)

    def reset_env(self, rng, params):
        return jnp.zeros((1, self._width)), jnp.zeros(())

    def step_env(self, rng, state, action, params):
        observation, state = self.reset_env(rng, params)
        return observation, state, self._reward, jnp.ones(1, bool), jnp.zeros(1, bool), self.info


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ({"info": {"name": "abc"}}, TypeError, "step_env returns 'abc' as info.name; jax traces"),
        ({"n_actors": None}, TypeError, "n_actors is None; it must be a whole number of at least"),
        ({"n_actors": 0}, TypeError, "n_actors is 0; it must be"),
        ({"width": 0}, ValueError, r"actors observe nothing: observations have shape \(1, 0\)"),
        ({"n_actions": 0}, ValueError, r"Discrete\(n=0\) has no action to choose"),
        ({"reward": 1j}, TypeError, "step_env returns reward of dtype complex64; it must be real"),
        ({"teams": 1}, TypeError, "teams=1 is no list of whole numbers, one per actor"),
        ({"teams": ["red"]}, TypeError, r"teams=\['red'\] is no list of whole numbers"),
        ({"teams": (0, 1)}, ValueError, r"teams=\(0, 1\) names 2 actors; there are 1"),
    ],
)
def test_an_environment_without_something_to_trace_or_to_learn_is_refused(returned, error, message):
    with pytest.raises(error, match=message) as raised:
        ja.DiscreteIPPO(Returning(**returned), None, TINY)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"width": 5}, r"Dense_0.kernel is \[1, 5, \d+\] there and \[1, 2, \d+\] in this agent"),
        ({"n_actions": 3}, r"actor.params.Dense_0.bias is \[1, 3\] there and \[1, 2\] in"),
    ],
    ids=["observations", "actions"],
)
def test_a_runner_of_another_environment_is_refused_by_its_shapes(other, message):
    agent = ja.DiscreteIPPO(Returning(), None, TINY)
    runner = begin(ja.DiscreteIPPO(Returning(**other), None, TINY))
    for use in (
        lambda: agent.policy(runner, jnp.zeros((1, 2))),
        lambda: agent.eval(jax.random.key(0), 1, runner=runner),
        lambda: agent.step(runner),
        lambda: agent.train(jax.random.key(0), FAST, runner=runner),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            use()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("own", "others", "message"),
    [
        (
            {"scale_rewards": True},
            {},
            r"reward\.\S+ is missing there and \[1, 4, 2\] in",
        ),
        ({}, {"normalize_values": True}, r"value\.mean is \[1\] there and missing in"),
    ],
)
def test_a_runner_that_was_normalised_otherwise_is_not_continued(own, others, message):
    with pytest.raises(ValueError, match=f"the runner is of another agent: normalizers.{message}"):
        shared_agent(**own).train(None, FAST, runner=begin(shared_agent(**others)))


def with_momentum(params):
    return optax.sgd(params.learning_rate, momentum=0.9)


def test_a_runner_of_another_optimizer_is_not_continued():
    agent, runner = shared_agent(optimizer=with_momentum), begin(shared_agent())
    message = r"of another agent: opt_state\.actor\.\S+\.trace\.\S+ is missing there and \[1, "
    for use in (lambda: agent.step(runner), lambda: agent.train(None, FAST, runner=runner)):
        with pytest.raises(ValueError, match=message):
            use()


def test_a_runner_of_another_batch_size_is_not_continued():
    agent, runner = shared_agent(), begin(shared_agent(batch_size=8))
    for use in (
        lambda: agent.step(runner),
        lambda: agent.train(None, FAST, runner=runner),
    ):
        with pytest.raises(ValueError, match="plays 8 environments, and batch_size=4; configure 8"):
            use()


@pytest.mark.parametrize(
    "use",
    [
        lambda agent, given: agent.policy(given, jnp.zeros((2, 2))),
        lambda agent, given: agent.train(None, FAST, runner=given),
        lambda agent, given: agent.step(given),
        lambda agent, given: agent.act(given, jnp.zeros((4, 2, 2))),
        lambda agent, given: agent.collect_training(given),
    ],
    ids=["policy", "train", "step", "act", "collect_training"],
)
def test_what_is_no_runner_is_refused(use):
    with pytest.raises(TypeError, match=r"^runner is tuple; pass a Runner, which train returns"):
        use(shared_agent(), (1, {}))


def test_what_is_no_rollout_is_refused():
    agent = shared_agent()
    with pytest.raises(TypeError, match=r"^rollout is dict; pass a jaxagents.Rollout"):
        agent.update(begin(agent), {})


def test_what_are_no_hyperparameters_is_refused():
    for use in (shared_agent().log_hyperparams, lambda each: begin_with(each)):
        with pytest.raises(
            TypeError, match=r"^hyperparams is dict; pass jaxagents.HyperParameters"
        ):
            use({"gamma": 0.9})
    with pytest.raises(TypeError, match=r"gamma=\(1\+2j\) is not a number"):
        begin_with(FAST.replace(gamma=1 + 2j))


def begin_with(hyperparams):
    return shared_agent().init(jax.random.key(0), hyperparams)


def test_the_runner_of_a_population_is_refused_with_the_remedy():
    agent = shared_agent()
    population = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), begin(agent))
    for use in (
        lambda: agent.step(population),
        lambda: agent.act(population, jnp.zeros((4, 2, 2))),
    ):
        with pytest.raises(ValueError, match=r"population of 2; choose one by agent.member"):
            use()
    assert int(agent.member(population, np.argmax([0, 1])).n_updates_done) == 0
    with pytest.raises(TypeError, match=r"^index='best' is not an integer; members count from 0.$"):
        agent.member(population, "best")


def test_methods_that_need_a_training_say_so():
    agent = shared_agent()
    with pytest.raises(ValueError, match="collect_training"):
        agent.eval(jax.random.key(0), 1)
    for entry in (agent.restore, agent.resume):
        with pytest.raises(ValueError, match="checkpoint_dir=None"):
            entry()
    with pytest.raises(ValueError, match="mode='newest'"):
        agent.restore(mode="newest")


def test_an_evaluation_takes_a_whole_number_of_episodes():
    with pytest.raises(TypeError, match=r"^n_evals=2\.5 is not an integer\.$"):
        shared_agent().eval(jax.random.key(0), 2.5)


@pytest.mark.parametrize("n_evals", [0, -1])
def test_an_evaluation_of_no_episodes_is_refused(n_evals):
    with pytest.raises(ValueError, match=f"n_evals={n_evals} episodes; evaluate at least 1"):
        shared_agent().eval(jax.random.key(0), n_evals)


@pytest.mark.parametrize(
    "shape", [(2, 7), (2,), pytest.param((2, 1), marks=pytest.mark.slow), (4, 2, 3)]
)
@pytest.mark.parametrize("method", ["policy", "value"])
def test_an_observation_of_another_width_is_refused_by_its_shape(method, shape):
    agent = shared_agent()
    runner = agent.init(jax.random.key(0), FAST)
    apply = getattr(agent, method)
    assert apply(runner, jnp.zeros((2, 2))).shape == (2,)
    assert jax.vmap(lambda each: apply(runner, each))(jnp.zeros((5, 2, 2))).shape == (5, 2)
    with pytest.raises(ValueError, match="the observation has shape ") as raised:
        apply(runner, jnp.zeros(shape))
    assert str(raised.value).startswith(
        f"the observation has shape {shape}; the agent was built for (2, 2), the environment's own"
    )


@pytest.mark.parametrize("method", ["policy", "value"])
def test_policies_of_several_actors_observe_all_of_them(method):
    agent = shared_agent(parameter_sharing="independent")
    with pytest.raises(
        ValueError, match=r"has shape \(1, 2\); the agent was built for \(2, 2\): act"
    ):
        getattr(agent, method)(begin(agent), jnp.zeros((1, 2)))


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2), (4, 1, 2)])
def test_a_step_by_hand_observes_all_environments_and_actors(shape):
    agent = shared_agent()
    with pytest.raises(
        ValueError, match=r"the agent was built for \(4, 2, 2\): environments, actors"
    ):
        agent.act(begin(agent), jnp.zeros(shape))


def test_agent_id_and_time_are_no_part_of_the_given_observation():
    agent = shared_agent(agent_id=True, max_episode_steps=5, observe_time=True)
    runner = agent.init(jax.random.key(0), FAST)
    prepared = jnp.zeros(agent.environments.observation.features.shape)
    with pytest.raises(ValueError, match=r"has shape \(2, 5\); the agent was built for \(2, 2\)"):
        agent.policy(runner, ja.Observation(prepared, elapsed=jnp.array(0)))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_whole_numbers_of_another_shape_are_no_key(shape):
    with pytest.raises(TypeError, match=r"is not a random key; pass jax.random.key") as raised:
        shared_agent(WALK).init(jnp.zeros(shape, jnp.uint32), FAST)
    assert "\n" not in str(raised.value)


def test_a_runner_begins_with_one_key():
    with pytest.raises(ValueError, match=r"rng holds 3 keys, and a runner begins with one"):
        shared_agent(WALK).init(jax.random.split(jax.random.key(0), 3), FAST)
