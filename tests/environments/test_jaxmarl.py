import copy
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.jaxmarl import (
    JaxMARLEnvironment,
    construct,
    jaxmarl,
    refuse_unsupported,
)
from jaxagents.environments.registry import JAXMARL_IDS

QUALIFYING = [env_id.removeprefix("jaxmarl/") for env_id in JAXMARL_IDS]
MPE = [name for name in jaxmarl.registered_envs if name.startswith("MPE_")]
SPREAD = "MPE_simple_spread_v3"
COMPILE_FAST = {"xla_backend_optimization_level": 0}


def make(name, **env_kwargs):
    return JaxMARLEnvironment(construct(name, **env_kwargs))


def play(env, actions, rng):
    """Step through the actions, [time, actors, ...]; the answers are stacked over time."""

    def step(state, action):
        observation, state, *answer = env.step(rng, state, action)
        return state, (observation, state, *answer)

    observation, state = env.reset(rng)
    return observation, state, jax.lax.scan(step, state, actions)[1]


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def any_action(env):
    space = env.action_space()
    dtype = jnp.int32 if hasattr(space, "n") else jnp.float32
    return jnp.zeros((env.n_actors, *space.shape), dtype)


@pytest.mark.parametrize(
    ("name", "env_kwargs", "n_actors", "observed", "chosen"),
    [
        ("MPE_simple_v3", {}, 1, 4, 5),
        ("MPE_simple_spread_v3", {}, 3, 18, 5),
        ("MPE_simple_spread_v3", {"num_agents": 2}, 2, 14, 5),
        ("MPE_simple_reference_v3", {}, 2, 21, 50),
        ("MPE_simple_facmac_v1", {}, 4, 16, (5,)),
        ("MPE_simple_facmac_3a_v1", {}, 4, 16, (5,)),
        ("MPE_simple_facmac_6a_v1", {}, 8, 28, (5,)),
        ("MPE_simple_facmac_9a_v1", {}, 12, 40, (5,)),
        ("MPE_simple_v3", {"action_type": "Continuous"}, 1, 4, (5,)),
        ("MPE_simple_spread_v3", {"action_type": "Continuous"}, 3, 18, (5,)),
        ("MPE_simple_reference_v3", {"action_type": "Continuous"}, 2, 21, (15,)),
    ],
)
def test_resets_and_steps_have_the_same_types(name, env_kwargs, n_actors, observed, chosen):
    env = make(name, **env_kwargs)
    rng = jax.random.key(0)
    action = any_action(env)

    observation, state = jax.eval_shape(env.reset, rng)
    stepped = jax.eval_shape(env.step_env, rng, state, action, None)

    assert (env.n_actors, observation.shape) == (n_actors, (n_actors, observed))
    space = env.action_space()
    assert (space.n if isinstance(chosen, int) else space.shape) == chosen
    assert types((observation, state)) == types(stepped[:2])
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    library_state = jax.eval_shape(env.env.reset, rng)[1]
    assert types(state) == types(jax.eval_shape(env.step_env, rng, library_state, action, None)[1])
    assert [(each.shape, each.dtype) for each in stepped[2:5]] == [
        ((n_actors,), jnp.float32),
        ((n_actors,), jnp.bool),
        ((n_actors,), jnp.bool),
    ]


def test_mpe_is_truncated_when_the_librarys_step_counter_says_so_and_never_terminates():
    env = make(SPREAD)
    rngs = jax.random.split(jax.random.key(0), 2)

    _, _, (_, state, reward, terminated, truncated, _) = jax.jit(
        jax.vmap(lambda rng: play(env, jnp.zeros((28, 3), jnp.int32), rng)),
        compiler_options=COMPILE_FAST,
    )(rngs)

    # The library counts the steps of max_steps=25 from 0 to 25: the 26th is the last.
    assert env.env.max_steps == 25
    expected = np.zeros((2, 28, 3), bool)
    expected[:, 25] = True
    np.testing.assert_array_equal(truncated, expected)
    assert not np.any(terminated)
    np.testing.assert_array_equal(state.step, [[*range(1, 26), 0, 1, 2]] * 2)
    assert reward.shape == (2, 28, 3)


def test_the_time_limit_follows_max_steps():
    env = make(SPREAD, max_steps=2)

    *_, (_, _, _, _, truncated, _) = jax.jit(
        lambda: play(env, jnp.zeros((6, 3), jnp.int32), jax.random.key(0)),
        compiler_options=COMPILE_FAST,
    )()

    np.testing.assert_array_equal(np.flatnonzero(truncated.all(axis=1)), [2, 5])
    assert env.truncation_rule == "time limit: the step after max_steps = 2 steps is the last"


@pytest.mark.parametrize("action_type", ["Discrete", "Continuous"])
def test_steps_are_the_librarys_with_actors_in_its_order(action_type):
    env = make(SPREAD, action_type=action_type, max_steps=0)
    rng = jax.random.key(3)
    first, state = env.reset(rng)
    if action_type == "Discrete":
        action = jnp.array([1, 2, 4])
    else:
        action = jnp.arange(15, dtype=jnp.float32).reshape(3, 5) / 15
    library_first, _ = env.env.reset(rng)
    library_action = dict(zip(env.env.agents, action, strict=True))
    # Without noise, which spread has none of, the key changes nothing.
    library_observation, _, library_reward, _, _ = env.env.step_env(rng, state, library_action)

    observation, _, reward, _, truncated, info = env.step(rng, state, action)

    names = ["agent_0", "agent_1", "agent_2"]
    assert truncated.all()
    np.testing.assert_array_equal(first, [library_first[name] for name in names])
    np.testing.assert_allclose(
        info["final_observation"], [library_observation[name] for name in names], rtol=1e-6
    )
    np.testing.assert_allclose(reward, [library_reward[name] for name in names], rtol=1e-6)
    assert not np.allclose(observation, info["final_observation"])


def test_rewards_are_not_multiplied_by_the_number_of_actors():
    env = make(SPREAD)
    rng = jax.random.key(0)
    _, state = env.reset(rng)
    # Landmarks at the origin, the nearest actor 1 away and no two within reach: each landmark
    # gives -1, and half of the sum (local_ratio is 0.5) is each actor's reward.
    positions = jnp.array([[1, 0], [0, 2], [-3, 0], [0, 0], [0, 0], [0, 0]], jnp.float32)
    state = state.replace(p_pos=positions, p_vel=jnp.zeros_like(positions))

    _, _, reward, *_ = env.step_env(rng, state, jnp.zeros(3, jnp.int32), None)

    np.testing.assert_allclose(reward, [-1.5, -1.5, -1.5], rtol=1e-6)


def test_other_entries_of_the_observations_are_ignored():
    library_env = construct(SPREAD)
    reset = library_env.reset
    library_env.reset = lambda key: (reset(key)[0] | {"world_state": jnp.zeros(54)}, reset(key)[1])

    observation, _ = JaxMARLEnvironment(library_env).reset(jax.random.key(0))

    assert observation.shape == (3, 18)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("MPE_simple_tag_v3", ["adversary_0 observes (16,)", "agent_0 observes (14,)"]),
        (
            "MPE_simple_speaker_listener_v4",
            [
                "speaker_0 observes (3,) and acts in Discrete(3)",
                "listener_0 observes (11,) and acts in Discrete(5)",
            ],
        ),
        (
            "MPE_simple_world_comm_v3",
            [
                "leadadversary_0 observes (34,) and acts in Box(9,)",
                "agent_0 observes (28,) and acts in Box(5,)",
            ],
        ),
    ],
)
def test_unequal_actors_are_refused_with_their_shapes(name, texts):
    with pytest.raises(ValueError, match="actors of JaxMARL's") as refusal:
        make(name)

    assert all(text in str(refusal.value) for text in texts)


def test_actors_that_observe_alike_but_act_differently_are_refused():
    library_env = construct(SPREAD)
    library_env.action_spaces["agent_1"] = jaxmarl.make("MPE_simple_reference_v3").action_spaces[
        "agent_1"
    ]

    with pytest.raises(ValueError, match=r"agent_1 observes \(18,\) and acts in Discrete\(50\)"):
        JaxMARLEnvironment(library_env)


def test_the_listed_environments_of_mpe_are_those_with_equal_actors():
    def qualifies(name):
        try:
            make(name)
        except ValueError:
            return False
        return True

    assert [name for name in MPE if qualifies(name)] == QUALIFYING


@pytest.mark.parametrize("name", [name for name in jaxmarl.registered_envs if name not in MPE])
def test_other_families_are_refused_by_name(name):
    with pytest.raises(ValueError, match="is not supported yet: of JaxMARL, only jaxmarl/MPE_"):
        refuse_unsupported(name)


def test_environments_of_other_families_are_refused():
    with pytest.raises(ValueError, match="CoinGame is not supported yet"):
        JaxMARLEnvironment(jaxmarl.make("coin_game"))


def test_keywords_that_the_library_would_ignore_are_refused():
    with pytest.raises(TypeError, match=r"'nmu_agents'; there are .*num_agents"):
        construct(SPREAD, nmu_agents=2)


def test_keywords_that_the_library_reads_without_declaring_them_are_accepted():
    assert construct(SPREAD, damping=0.5).damping == 0.5


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_observe_as_the_original_does(duplicate):
    env = make("MPE_simple_v3")

    original, copied = (each.reset(jax.random.key(0))[0] for each in (env, duplicate(env)))

    np.testing.assert_array_equal(original, copied)


def test_importing_is_silent_and_leaves_the_standard_streams_alone():
    program = (
        "import io, sys\n"
        "sys.stdout, sys.stderr = streams = io.StringIO(), io.StringIO()\n"
        "import jaxagents.environments.jaxmarl\n"
        "assert (sys.stdout, sys.stderr) == streams\n"
        "assert [stream.getvalue() for stream in streams] == ['', '']\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
