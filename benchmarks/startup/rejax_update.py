"""Train rejax's PPO on CartPole: ``python rejax_update.py STARTED N``."""

import sys

from ledger import Ledger

ledger = Ledger(float(sys.argv[1]))


def main() -> None:
    """Train from one key, as one program that never evaluates."""
    with ledger.stage("imports"):
        import jax
        import rejax
    ledger.listen()
    with ledger.stage("environment"):
        n_environment_steps = int(sys.argv[2]) * 4 * 128  # the sizes of ../peers/cartpole.yaml
        ppo = rejax.PPO.create(
            env="CartPole-v1",
            num_envs=4,
            num_steps=128,
            num_epochs=4,
            num_minibatches=4,
            total_timesteps=n_environment_steps,
            eval_freq=n_environment_steps,
            skip_initial_evaluation=True,
        ).replace(eval_callback=lambda algorithm, train_state, rng: ())
    with ledger.stage("updates"):
        jax.block_until_ready(jax.jit(ppo.train)(jax.random.key(0)))
    ledger.mark("updates")
    ledger.tell()


main()
