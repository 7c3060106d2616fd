"""JaxMARL's recipes for MPE, by our stand-ins for its scripts, and our agent in the same."""

import dataclasses
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import jaxmarl
import jaxmarl_recipe
import jaxmarl_recurrent_recipe
import numpy as np
from jaxmarl.wrappers.baselines import MPELogWrapper
from jaxmarl_recipe import Recipe, merge_agents

import jaxagents as ja

# The scripts build one network for the first agent's spaces: agents are alike and discrete here.
TASKS = {
    "jaxmarl/MPE_simple_v3": 500_000,
    "jaxmarl/MPE_simple_spread_v3": 1_000_000,
    "jaxmarl/MPE_simple_reference_v3": 1_000_000,
}
N_ENVS = 16
N_EPISODES = 100


def train(
    task: str, n_steps: int, n_seeds: int, module: Any = jaxmarl_recipe
) -> tuple[np.ndarray, Recipe]:
    """Return the final returns by seed, means over actors, and the recipe's hyperparameters."""
    recipe = dataclasses.replace(module.STOCK, env_name=task.removeprefix("jaxmarl/"))
    train_once = jax.jit(module.make_train(n_steps // (N_ENVS * recipe.n_steps), N_ENVS, recipe))
    env = MPELogWrapper(jaxmarl.make(recipe.env_name))
    play = jax.jit(partial(_final_return, module, env))
    finals = []
    for seed in range(n_seeds):
        training, _ = train_once(jax.random.key(seed))
        finals.append(float(play(training, jax.random.key(1000 + seed))))
    return np.array(finals), recipe


def _final_return(module: ModuleType, env: MPELogWrapper, training: Any, rng: Any) -> jax.Array:
    """Play sampled episodes side by side; return the mean over them and the actors."""
    rng, rng_reset = jax.random.split(rng)
    observations, state = jax.vmap(env.reset)(jax.random.split(rng_reset, N_EPISODES))
    obs = merge_agents(observations, env.agents)
    training = training._replace(env=state, rng=rng)
    if module is jaxmarl_recipe:
        training = training._replace(obs=obs)
    else:
        n_actors = len(obs)
        training = training._replace(
            seen=jaxmarl_recurrent_recipe.Seen(obs, jnp.zeros(n_actors, bool)),
            memory=jnp.zeros((n_actors, jaxmarl_recurrent_recipe.HIDDEN_SIZE)),
        )
    _, _, collected = module.collect(training, env, env.max_steps + 1)
    # Times the number of agents, of the episode that ended last.
    returns = collected if module is jaxmarl_recipe else collected["returned_episode_returns"]
    return returns[-1].mean() / env.num_agents


def configure(
    recipe: Recipe, n_steps: int, module: Any = jaxmarl_recipe
) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent as a recipe."""
    is_recurrent = module is jaxmarl_recurrent_recipe
    size = jaxmarl_recurrent_recipe.HIDDEN_SIZE
    recurrent_layers = ja.Layers(
        hidden_sizes=(size,), memory_size=size, sizes_after_memory=(size,), activation="relu"
    )
    layers = recurrent_layers if is_recurrent else ja.Layers(hidden_sizes=(64, 64))
    config = ja.AgentConfig(
        n_steps=n_steps // (N_ENVS * recipe.n_steps),
        batch_size=N_ENVS,
        rollout_length=recipe.n_steps,
        minibatch_size=N_ENVS // recipe.n_minibatches,
        minibatch_unit="trajectory" if is_recurrent else "step",
        recurrent="gru" if is_recurrent else None,
        actor_epochs=recipe.n_epochs,
        critic_epochs=recipe.n_epochs,
        learning_rate_schedule="linear" if recipe.anneal_learning_rate else "constant",
        time_limits="terminal",
        observe_time=False,
        normalize_observations=False,
        normalize_values=False,
        clip_values=True,
        actor_layers=layers,
        critic_layers=layers,
        n_evals=0,
        progress_bar=False,
    )
    optimizer = ja.OptimizerParams(
        learning_rate=recipe.learning_rate, grad_clip=recipe.max_gradient_norm
    )
    return config, ja.HyperParameters(
        gamma=recipe.discount,
        gae_lambda=recipe.gae_lambda,
        eps_clip=recipe.clip,
        vf_coeff=recipe.value_coefficient / 2,  # of half the squared error
        ent_coeff=recipe.entropy_coefficient,
        actor_optimizer_params=optimizer,
        critic_optimizer_params=optimizer,
    )
