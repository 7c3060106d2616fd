"""The defaults that are read without jax are those of the configuration."""

import subprocess
import sys

from jaxagents.config import AgentConfig
from jaxagents.configuration import ExperimentConfig, to_plain
from jaxagents.defaults import default_config

NOT_IN_A_FILE = ("actor_network", "critic_network", "checkpoint_dir")


def test_the_defaults_are_those_of_a_configuration_that_says_nothing():
    defaults = default_config()
    for name in NOT_IN_A_FILE:
        assert defaults["agent"].pop(name) is None
    plain = to_plain(ExperimentConfig(name="x", env="y", agent=AgentConfig(n_steps=1)))
    del plain["name"], plain["env"], plain["agent"]["n_steps"]
    assert defaults == plain


def test_reading_them_imports_no_jax():
    code = "import sys; from jaxagents.defaults import default_config; default_config()"
    code += "; print('jax' in sys.modules, 'numpy' in sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.split() == ["False", "False"]
