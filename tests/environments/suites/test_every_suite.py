"""What holds for the environments of all suites that are installed."""

import dataclasses
import importlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxagents as ja
from jaxagents.environments.quiet_import import SILENCE
from jaxagents.environments.registry import ids_of_extras, missing_ids
from jaxagents.environments.spaces import Box, Discrete, as_space
from jaxagents.environments.suites.catalogue import SUITES
from jaxagents.visual.replay import write_replay

ONE_OF_EACH = {
    "jumanji/LevelBasedForaging-v0": {"scenario": "2s-8x8-2p-2f"},
    "matrax/Climbing-stateless-v0": {"time_limit": 5},
    "pgx/tic_tac_toe": {},
    "brax/inverted_pendulum": {"backend": "spring", "episode_length": 50},
    "playground/CartpoleBalance": {"episode_length": 50},
    "craftax/Craftax-Classic-Symbolic-v1": {},
    "navix/Navix-Empty-5x5-v0": {},
    "xminigrid/MiniGrid-Empty-5x5": {},
}
NEEDS_A_DOWNLOAD = "needs data that cannot be downloaded here"
ALL = [each for each in ids_of_extras() if not each.startswith(("jaxmarl/", *ONE_OF_EACH))]
# Of the 168 matrix games, which differ in their payoffs only, a few.
ALL = [each for each in ALL if not each.startswith("matrax/") or "-1-" in each or "-25-" in each]
EVERY = [
    *(
        # Matrax has Jumanji's adapter.
        pytest.param(env_id, kwargs, id=env_id, marks=[pytest.mark.slow] * ("jumanji/" in env_id))
        for env_id, kwargs in ONE_OF_EACH.items()
    ),
    *(pytest.param(env_id, {}, id=env_id, marks=pytest.mark.slow) for env_id in ALL),
]
MUJOCO = ("brax/", "playground/")  # which draw without a screen only if told to
ONE_LAYER = ja.Layers(hidden_sizes=(8,))
CONFIG = ja.AgentConfig(
    n_steps=2,
    batch_size=2,
    minibatch_size=1,
    rollout_length=8,
    actor_epochs=1,
    critic_epochs=1,
    eval_frequency=2,
    n_evals=1,
    initial_evaluation=False,
    max_episode_steps=20,
    progress_bar=False,
    actor_layers=ONE_LAYER,
    critic_layers=ONE_LAYER,
)


def make(env_id, env_kwargs):
    if env_id in missing_ids():
        pytest.skip(f"{missing_ids()[env_id]} is not installed")
    try:
        return ja.make(env_id, **env_kwargs)
    except OSError as error:
        pytest.skip(f"{NEEDS_A_DOWNLOAD}: {error}")


def agent_for(env, params, **changes):
    is_continuous = isinstance(as_space(env.action_space(params)), Box)
    agent_class = ja.ContinuousIPPO if is_continuous else ja.DiscreteIPPO
    return agent_class(env, params, dataclasses.replace(CONFIG, **changes))


def random_action(rng, env, params, observation):
    """Choose evenly among what the masks allow, as ``[actors, ...]``."""
    space = as_space(env.action_space(params))
    if isinstance(space, Box):
        shape = (env.n_actors, *space.shape)
        return jax.random.uniform(rng, shape, minval=space.low, maxval=space.high)
    mask = getattr(observation, "action_mask", None)
    if mask is None:
        mask = jnp.ones((env.n_actors, sum(space.n_choices)), bool)
    ends = np.cumsum(space.n_choices)
    parts = jnp.split(jnp.where(mask, 0.0, -jnp.inf), ends[:-1], axis=-1)
    keys = jax.random.split(rng, len(parts))
    chosen = [jax.random.categorical(key, part) for key, part in zip(keys, parts, strict=True)]
    return chosen[0] if isinstance(space, Discrete) else jnp.stack(chosen, axis=-1)


def can_draw(env_id):
    return not env_id.startswith(MUJOCO) or "MUJOCO_GL" in os.environ


def play(env, params, n_steps):
    """Play at random with resets; return each step's results."""

    def step(carry, rng):
        observation, state = carry
        rng_action, rng_step = jax.random.split(rng)
        action = random_action(rng_action, env, params, observation)
        observation, state, reward, terminated, truncated, info = env.step(
            rng_step, state, action, params
        )
        return (observation, state), (observation, action, reward, terminated, truncated, info)

    def all_steps(rng):
        rng_reset, rng = jax.random.split(rng)
        return jax.lax.scan(step, env.reset(rng_reset, params), jax.random.split(rng, n_steps))[1]

    return jax.jit(all_steps)(jax.random.key(1))


@pytest.mark.parametrize(("env_id", "env_kwargs"), EVERY)
def test_random_play_keeps_the_protocol_and_trains(env_id, env_kwargs):
    env, params = make(env_id, env_kwargs)
    observation, _, reward, terminated, truncated, info = play(env, params, 200)
    features = getattr(observation, "features", observation)
    assert features.shape[:2] == (200, env.n_actors)
    assert bool(jnp.all(jnp.isfinite(features.astype(jnp.float32))))
    assert reward.shape == (200, env.n_actors)
    assert bool(jnp.all(jnp.isfinite(reward)))
    assert not bool(jnp.any(terminated & truncated))
    mask = getattr(observation, "action_mask", None)
    if mask is not None and isinstance(as_space(env.action_space(params)), Discrete):
        assert bool(jnp.all(jnp.any(mask, axis=-1)))
    assert all(jnp.ndim(info[name]) in (1, 2) for name in info if name != "final_observation")

    runner, _ = agent_for(env, params, n_evals=0).train(jax.random.key(0), ja.HyperParameters())
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(runner.actor.params))

    if hasattr(env, "draw") and can_draw(env_id):
        _, state = env.reset(jax.random.key(0), params)
        picture = env.draw(state, params)
        assert (picture.dtype, picture.ndim, picture.shape[-1]) == (np.uint8, 3, 3)
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "env_kwargs"), EVERY)
def test_training_resumes_bit_for_bit_and_is_replayed(env_id, env_kwargs, tmp_path):
    env, params = make(env_id, env_kwargs)
    whole, _ = agent_for(env, params).train(jax.random.key(0), ja.HyperParameters())
    first = agent_for(env, params, n_steps=1, eval_frequency=1, checkpoint_dir=str(tmp_path))
    first.train(jax.random.key(0), ja.HyperParameters())
    again = agent_for(env, params, eval_frequency=1, checkpoint_dir=str(tmp_path))
    resumed, _ = again.resume()
    for one, other in zip(
        jax.tree.leaves((whole.actor, whole.critic)),
        jax.tree.leaves((resumed.actor, resumed.critic)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

    if can_draw(env_id):
        episodes = again.record(jax.random.key(1), runner=resumed)
        (path,) = write_replay(env, params, episodes, tmp_path / "replay", max_frames=3)
        with Image.open(path) as replay:
            assert replay.n_frames > 1


def ids_of_jumanji():
    from jumanji import registered_environments

    return registered_environments()


def ids_of_matrax():
    importlib.import_module("matrax")
    return [each for each in ids_of_jumanji() if "-state" in each]


OWN_IDS = {
    "jumanji": lambda: [each for each in ids_of_jumanji() if "-state" not in each],
    "matrax": ids_of_matrax,
    "brax": lambda: importlib.import_module("brax.envs")._envs,
    "playground": lambda: importlib.import_module("mujoco_playground").registry.ALL_ENVS,
    "pgx": lambda: importlib.import_module("pgx").available_envs(),
    "navix": lambda: importlib.import_module("navix").registry(),
    "xminigrid": lambda: importlib.import_module("xminigrid").registered_environments(),
}
TO_TEST_BRAX = {"fast"}


@pytest.mark.parametrize("suite", OWN_IDS)
def test_the_catalogue_lists_what_the_library_has(suite):
    with SILENCE:
        pytest.importorskip(SUITES[suite].package)
        own_ids = set(OWN_IDS[suite]())
    assert set(SUITES[suite].names) == own_ids - TO_TEST_BRAX
    assert len(SUITES[suite].names) == len(set(SUITES[suite].names))


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_that_is_not_installed_names_its_extra(suite, monkeypatch):
    for module in [
        each for each in sys.modules if each.startswith("jaxagents.environments.suites.")
    ]:
        if module.rpartition(".")[2] in SUITES:
            monkeypatch.delitem(sys.modules, module)
    for package in ("jumanji", "brax.envs", *(found.package for found in SUITES.values())):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", None)
    env_id = f"{suite}/{SUITES[suite].names[0]}"
    with pytest.raises(ValueError, match=rf"{env_id} needs .*\[{suite}\]"):
        ja.make(env_id)


def test_a_similar_id_is_suggested(monkeypatch):
    monkeypatch.setattr("jaxagents.environments.registry.missing_ids", dict)
    with pytest.raises(ValueError, match=r"unknown environment id 'jumanji/Snake-v2'.*Snake-v1"):
        ja.make("jumanji/Snake-v2")


def test_the_catalogue_is_read_without_the_libraries():
    packages = {found.package for found in SUITES.values()}
    program = (
        "import sys; from jaxagents.environments.registry import registered_ids; registered_ids()\n"
        f"assert not {packages} & {{*sys.modules}}, sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
