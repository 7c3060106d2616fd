"""Training begins with parts of a trained policy, and leaves frozen ones as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxagents as ja
from jaxagents.ippo.freezing import loss_of_trainable, with_frozen, without_frozen
from jaxagents.ppo.normalization import RunningStatistics
from jaxagents.ppo.optimization import clip_by_global_norm, descend, init_network
from tests.agents import (
    FAST,
    WALK,
    assert_trees_equal,
    begin,
    opinionated_runner,
    shared_agent,
    tiny,
    trained,
)
from tests.ippo.test_by_hand import logged
from tests.probes import RealWalk

OBSERVATION = jnp.array([[0.5, -1.0], [2.0, 0.25]])  # of both actors
NORMALIZED = {"normalize_observations": True, "normalize_values": True, "scale_rewards": True}


def decaying(params: ja.OptimizerParams) -> optax.GradientTransformation:
    return optax.adamw(params.learning_rate, weight_decay=0.1)


def bits(tree) -> dict[str, bytes]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf).tobytes()
        for path, leaf in leaves
    }


def changed(before, after) -> set[str]:
    before, after = bits(before), bits(after)
    return {name for name, each in after.items() if each != before[name]}


def with_statistics(agent: ja.IPPOBase, runner: ja.Runner) -> ja.Runner:
    """Give a runner statistics of a thousand samples with mean 1 and variance 4."""

    def fill(tree: RunningStatistics) -> RunningStatistics:
        numbers = RunningStatistics(weight=1000.0, mean=1.0, variance=4.0)
        return jax.tree.map(jnp.full_like, tree, numbers)

    own = runner.normalizers
    reward = own.reward and own.reward._replace(statistics=fill(own.reward.statistics))
    statistics = {
        name: fill(each)
        for name, each in own._asdict().items()
        if isinstance(each, RunningStatistics)
    }
    return runner.replace(normalizers=own._replace(reward=reward, **statistics))


def test_a_frozen_parameter_keeps_its_bits_and_has_no_part_in_the_gradients_norm():
    params = {"params": {"a": jnp.float32(0.0), "b": jnp.float32(-0.0)}}  # 0.0 has other bits

    def loss(params, minibatch):
        return 3 * params["params"]["a"] + 4 * params["params"]["b"], {}

    trainable = without_frozen(params, "critic", ["critic.b"])
    optimizer = optax.chain(clip_by_global_norm(1.0), optax.sgd(1.0))
    network = init_network(trainable, optimizer)
    gradients, _ = jax.grad(loss_of_trainable(loss, params), has_aux=True)(trainable, None)
    network = descend(network, gradients, optimizer, jnp.float32(1.0))
    after = with_frozen(network.params, params)["params"]
    assert after["a"] == -1.0  # clipped to the norm of 3 alone; with 4, the step would be 0.6
    assert np.signbit(after["b"])
    assert without_frozen(params, "actor", ["critic.b"]) == params
    assert without_frozen(params, "critic", ["critic.bias"]) == params


def test_an_update_changes_nothing_that_is_frozen_and_all_else():
    """The optimizer decays weights; rescaling would change the critic's last layer."""
    agent = shared_agent(freeze=("actor.torso", "critic"), optimizer=decaying, **NORMALIZED)
    before = with_statistics(agent, opinionated_runner(agent))
    after, metrics = agent.step(before)
    assert changed(before.actor.params, after.actor.params) == {
        "params.Dense_0.kernel",
        "params.Dense_0.bias",
    }
    assert not changed(before.critic.params, after.critic.params)
    assert changed(before.normalizers, after.normalizers) == {
        "observation.weight",
        "observation.mean",
        "observation.variance",
        "reward.discounted_return",
    }
    assert metrics["critic_gradient_norm"] == 0


def begun(agent: ja.IPPOBase, runner: ja.Runner | None, *parts: str) -> ja.Runner:
    return agent.init(jax.random.key(7), FAST, runner, parts or ("actor", "critic"))


def logits(agent: ja.IPPOBase, runner: ja.Runner) -> jax.Array:
    observation = ja.Observation(jnp.array([[[0.5, -1.0], [2.0, 0.25]]]))  # of both actors
    return agent.networks.dist_params(agent.networks.actor_of(runner), observation, ())[0]


@pytest.mark.slow
def test_each_part_is_taken_with_the_statistics_that_it_has_seen_and_the_other_is_new():
    agent = shared_agent(centralized_critic=True, **NORMALIZED)
    source = with_statistics(agent, opinionated_runner(agent))
    new, actor, critic = (
        begun(agent, None),
        begun(agent, source, "actor"),
        begun(agent, source, "critic"),
    )
    np.testing.assert_array_equal(logits(agent, actor), logits(agent, source))
    assert_trees_equal(actor.critic, new.critic)
    assert_trees_equal(critic.actor, new.actor)
    assert_trees_equal(critic.critic.params, source.critic.params)
    for name in ("critic_features", "value"):
        assert_trees_equal(getattr(actor.normalizers, name), getattr(new.normalizers, name))
        assert_trees_equal(getattr(critic.normalizers, name), getattr(source.normalizers, name))
    assert_trees_equal(critic.normalizers.observation, new.normalizers.observation)
    assert_trees_equal(actor.normalizers.reward, new.normalizers.reward)
    assert critic.normalizers.reward.statistics.mean == 1


def test_critics_that_observe_what_actors_do_bring_its_statistics():
    agent = shared_agent(**NORMALIZED)
    start = agent.runners.start_from(agent.runners.shapes(), ["critic"])
    assert start.actor is None
    assert start.normalizers.observation is not None


def test_a_part_that_is_not_taken_need_not_fit():
    agent, other = shared_agent(**NORMALIZED), shared_agent(critic_layers=ja.Layers((6,)))
    start = other.runners.start_from(shared_agent().runners.shapes(), ["actor"])
    assert start.critic is None
    assert agent.runners.start_from(agent.runners.shapes(), ["actor"]).normalizers.value is None


@pytest.mark.parametrize(
    ("changes", "parts", "message"),
    [
        ({}, ("actor", "torso"), r"parts=\('actor', 'torso'\) is unknown; choose one or both of"),
        ({}, "actor", "parts='actor' is unknown"),
        ({}, (), r"parts=\(\) is unknown"),
        (
            {"critic_layers": ja.Layers((6,))},
            ("critic",),
            r"critic\.params\.params\.Dense_0\.kernel is \[1, 8, 1\] there and \[1, 6, 1\] here",
        ),
        ({"shared_torso": True}, ("critic",), "a critic's first layers are the actor's"),
        (
            {"freeze": ("critic.Dense_0",)},
            ("actor",),
            r"freeze=\['critic\.Dense_0'\] freezes normalizers\.value, which has no samples yet",
        ),
    ],
)
def test_parts_that_cannot_begin_a_training_are_named_in_one_line(changes, parts, message):
    agent, runner = (
        shared_agent(**NORMALIZED, **changes),
        shared_agent(**NORMALIZED).runners.shapes(),
    )
    with pytest.raises(ValueError, match=message) as raised:
        agent.init(jax.random.key(0), FAST, runner, parts)
    assert "\n" not in str(raised.value)


def test_parts_of_nothing_are_refused():
    with pytest.raises(ValueError, match=r"parts=\('actor',\) of what\?"):
        shared_agent().init(jax.random.key(0), FAST, parts=("actor",))


@pytest.mark.parametrize(
    "path", ["actor.torso.Dense_9", "actor.tor", "log_std", "normalizers.value"]
)
def test_an_unknown_path_is_refused_with_all_there_are(path):
    with pytest.raises(ValueError, match=rf"freeze: {path} names nothing; there are ") as raised:
        ja.ContinuousIPPO(RealWalk(), None, tiny(freeze=("critic", path)))
    *_, layers = str(raised.value).partition("there are ")
    assert layers == (
        "actor.log_std, actor.Dense_0, actor.torso.Dense_0, critic.Dense_0, critic.torso.Dense_0."
    )


def test_one_path_is_no_list():
    with pytest.raises(TypeError, match="freeze='critic' is text; give a list of paths"):
        tiny(freeze="critic")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "frozen", "moving"),
    [
        ({"recurrent": "gru", "advantages": "vtrace"}, "actor.torso", "update_memory_kernel"),
        ({"shared_torso": True}, "actor.torso", "Dense_0.kernel"),
        ({"joint_update": True}, "actor.Dense_0", "torso.Dense_0.kernel"),
        ({"parameter_sharing": "independent"}, "actor.Dense_0.bias", "Dense_0.kernel"),
    ],
)
def test_every_kind_of_update_leaves_what_is_frozen(changes, frozen, moving):
    agent = shared_agent(freeze=(frozen,), **changes)
    before, (after, _) = begin(agent).actor.params, trained(agent)
    fixed = {name for name in bits(before) if is_within(name, frozen)}
    moved = changed(before, after.actor.params)
    assert fixed
    assert not moved & fixed
    assert f"params.{moving}" in moved


def is_within(name: str, path: str) -> bool:
    return f"actor.{name.removeprefix('params.')}.".startswith(f"{path}.")


@pytest.mark.slow
def test_a_frozen_run_resumes_bit_for_bit_and_the_next_may_freeze_something_else(tmp_path):
    def agent(name: str, **changes) -> ja.DiscreteIPPO:
        directory = {"checkpoint_dir": str(tmp_path / name)}
        return ja.DiscreteIPPO(WALK, None, tiny(**directory, **changes))

    frozen = {"freeze": ("actor.torso",)}
    rng = jax.random.key(0)
    whole, _ = agent("whole", n_steps=4, **frozen).train(rng, FAST)
    agent("stopped", n_steps=2, **frozen).train(rng, FAST)
    resumed, _ = agent("stopped", n_steps=4, **frozen).resume()
    assert_trees_equal(resumed.actor, whole.actor)
    assert_trees_equal(resumed.critic, whole.critic)

    with pytest.raises(ValueError, match=r"its freeze is \['actor.torso'\].* is None"):
        agent("stopped", n_steps=6).resume()
    unfrozen = agent("next", n_steps=2)
    runner = unfrozen.init(rng, FAST, whole)
    after, _ = unfrozen.train(None, FAST, runner)
    assert changed(whole.actor.params, after.actor.params) == bits(after.actor.params).keys()


@pytest.mark.slow
def test_members_of_a_population_and_cloned_actors_keep_what_is_frozen():
    agent = shared_agent(freeze=("actor.Dense_0",))
    rngs = jax.random.split(jax.random.key(0), 2)
    members, _ = agent.train(rngs, FAST)
    for index, rng in enumerate(rngs):
        before, after = agent.init(rng, FAST), agent.member(members, index)
        assert changed(before.actor.params, after.actor.params) == {
            "params.torso.Dense_0.kernel",
            "params.torso.Dense_0.bias",
        }
    runner = begin(agent)
    cloned, _ = agent.pretrain(runner, [logged(log_prob=None)], n_epochs=2)
    assert changed(runner.actor.params, cloned.actor.params) == {
        "params.torso.Dense_0.kernel",
        "params.torso.Dense_0.bias",
    }
