"""Train rejax's PPO with its default hyperparameters; print the final returns of each seed as JSON.

python rejax_learning.py ENVIRONMENT N_ENVIRONMENT_STEPS N_SEEDS
"""

import json
import sys

import jax
import numpy as np
import rejax
from rejax.evaluate import evaluate

N_EPISODES = 100

environment, n_environment_steps, n_seeds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ppo = rejax.PPO.create(
    env=environment,
    total_timesteps=n_environment_steps,
    eval_freq=n_environment_steps,
    skip_initial_evaluation=True,
).replace(eval_callback=lambda algorithm, train_state, rng: ())
train = jax.jit(ppo.train)


@jax.jit
def returns_of(train_state, rng):
    act = ppo.make_act(train_state)  # which samples
    limit = ppo.env_params.max_steps_in_episode
    return evaluate(act, rng, ppo.env, ppo.env_params, N_EPISODES, limit)[1]


finals = []
for seed in range(n_seeds):
    train_state, _ = train(jax.random.PRNGKey(seed))
    finals.append(float(np.mean(returns_of(train_state, jax.random.PRNGKey(1000 + seed)))))
names = ("num_envs", "num_steps", "num_epochs", "num_minibatches", "learning_rate", "gamma")
names += ("gae_lambda", "clip_eps", "vf_coef", "ent_coef", "max_grad_norm")
sizes = {name: float(getattr(ppo, name)) for name in names}
print("RESULT " + json.dumps({"finals": finals, "hyperparameters": sizes}))
