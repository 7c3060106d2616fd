"""Our side of a comparison: the agent of a configuration file, with overrides behind it."""

import sys

import jax
from worker import serve

import jaxagents as ja
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.make_agent import make_environment

config = load_config(sys.argv[1], sys.argv[2:])
agent = ja.DiscreteIPPO(*make_environment(config), config.agent)


def train(seed: int) -> None:
    jax.block_until_ready(agent.train(jax.random.key(seed), config.hyperparams))


serve(train, config.n_environment_steps)
