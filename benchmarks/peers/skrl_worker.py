"""skrl's IPPO in JAX on simple_spread of mpe2, of which it steps a single environment."""

import flax.linen as nn
import jax
from mpe2 import simple_spread_v3
from skrl.envs.wrappers.jax import wrap_env
from skrl.memories.jax import RandomMemory
from skrl.models.jax import CategoricalMixin, DeterministicMixin, Model
from skrl.multi_agents.jax.ippo import IPPO
from skrl.trainers.jax import SequentialTrainer
from skrl.utils import set_seed
from worker import serve

# simple_spread.yaml says the same.
N_UPDATES, N_STEPS = 2, 128
CONFIG = {
    "rollouts": N_STEPS,
    "learning_epochs": 4,
    "mini_batches": 1,
    "discount_factor": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 2.5e-4,
    "grad_norm_clip": 0.5,
    "ratio_clip": 0.2,
    "value_clip": 0.2,
    "value_loss_scale": 0.5,
    # In JAX it takes the entropy of a categorical policy from its deviation, which is NaN.
    "entropy_loss_scale": 0.0,
    "time_limit_bootstrap": True,
    "experiment": {"write_interval": 0, "checkpoint_interval": 0},
}


class Policy(CategoricalMixin, Model):
    """Logits of an actor's five moves."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        """Apply the network; what else skrl could be told is empty."""
        hidden = nn.tanh(nn.Dense(64)(inputs["observations"]))
        return nn.Dense(self.num_actions)(nn.tanh(nn.Dense(64)(hidden))), {}


class Value(DeterministicMixin, Model):
    """The value of an actor's observation."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        """Apply the network; what else skrl could be told is empty."""
        hidden = nn.tanh(nn.Dense(64)(inputs["observations"]))
        return nn.Dense(1)(nn.tanh(nn.Dense(64)(hidden))), {}


def make_trainer() -> SequentialTrainer:
    env = wrap_env(simple_spread_v3.parallel_env(), wrapper="pettingzoo", verbose=False)
    names = env.possible_agents
    models = {name: {} for name in names}
    for name in names:
        spaces = {
            "observation_space": env.observation_spaces[name],
            "action_space": env.action_spaces[name],
            "device": env.device,
        }
        models[name] = {"policy": Policy(**spaces), "value": Value(**spaces)}
        for role, model in models[name].items():
            model.init_state_dict(role=role)
    # It refuses its own defaults, which name no agents.
    no_arguments = {
        f"{what}_kwargs": {name: {} for name in names}
        for what in (
            "learning_rate_scheduler",
            "observation_preprocessor",
            "state_preprocessor",
            "value_preprocessor",
        )
    }
    memories = {name: RandomMemory(memory_size=N_STEPS, device=env.device) for name in names}
    agent = IPPO(
        possible_agents=names,
        models=models,
        memories=memories,
        observation_spaces=env.observation_spaces,
        state_spaces=env.state_spaces,
        action_spaces=env.action_spaces,
        device=env.device,
        cfg=CONFIG | no_arguments,
    )
    timing = {"timesteps": N_UPDATES * N_STEPS, "headless": True, "disable_progressbar": True}
    return SequentialTrainer(env=env, agents=agent, cfg=timing)


set_seed(0)
trainer = make_trainer()


def train(seed: int) -> None:
    # A second training goes on with the networks of the first, as compiled functions are theirs.
    trainer.train()
    policies = trainer.agents.policies.values()
    jax.block_until_ready([policy.state_dict.params for policy in policies])


serve(train, N_UPDATES * N_STEPS)
