"""rejax's PPO on CartPole with its default hyperparameters except the sizes; never evaluated."""

import jax
import rejax
from worker import serve

# cartpole.yaml says the same.
N_UPDATES, N_ENVS, N_STEPS = 2_000, 4, 128
N_ENVIRONMENT_STEPS = N_UPDATES * N_ENVS * N_STEPS

ppo = rejax.PPO.create(
    env="CartPole-v1",
    num_envs=N_ENVS,
    num_steps=N_STEPS,
    num_epochs=4,
    num_minibatches=4,
    total_timesteps=N_ENVIRONMENT_STEPS,
    eval_freq=N_ENVIRONMENT_STEPS,
    skip_initial_evaluation=True,
).replace(eval_callback=lambda algorithm, train_state, rng: ())
compiled_train = jax.jit(ppo.train)


def train(seed: int) -> None:
    jax.block_until_ready(compiled_train(jax.random.key(seed)))


serve(train, N_ENVIRONMENT_STEPS)
