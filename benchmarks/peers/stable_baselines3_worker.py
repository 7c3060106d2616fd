"""Stable-Baselines3's PPO on Gymnasium's CartPole, in the vector of environments it prefers."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from worker import serve

# gymnasium_cartpole.yaml says the same.
N_UPDATES, N_ENVS, N_STEPS, N_MINIBATCHES = 20, 16, 128, 4

model = PPO(
    "MlpPolicy",  # two layers of 64 tanh units, apart for policy and value
    make_vec_env("CartPole-v1", n_envs=N_ENVS),
    n_steps=N_STEPS,
    batch_size=N_ENVS * N_STEPS // N_MINIBATCHES,
    n_epochs=4,
    learning_rate=2.5e-4,
    ent_coef=0.01,
    seed=0,
    device="cpu",
)


def train(seed: int) -> None:
    # A second training goes on with the networks of the first: nothing is compiled.
    model.learn(N_UPDATES * N_ENVS * N_STEPS)


serve(train, N_UPDATES * N_ENVS * N_STEPS)
