"""Train one of JaxMARL's own scripts from several seeds; print its last returns as JSON.

python jaxmarl_learning.py CHECKOUT SCRIPT OVERRIDES N_SEEDS

OVERRIDES is JSON, on top of the script's own configuration file. A seed's return is the mean of
those that the script logs with its last ten updates: of sampled episodes.
"""

import json
import sys
import types
from pathlib import Path

import jax
import numpy as np
import yaml

N_LAST = 10  # updates

checkout, script, overrides, n_seeds = sys.argv[1:]
folder = Path(checkout) / "baselines" / "IPPO"
logged = []  # by the script, once an update


def stub(name, **members):
    """Stand in for a package that the script only logs or parses its command line with."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


stub("wandb", log=logged.append)
stub("hydra", main=lambda **_: lambda function: function)
stub("omegaconf", OmegaConf=None)
sys.path.insert(0, str(folder))
module = __import__(script)


def number(value):
    """Read a number such as 1e7, which YAML 1.1 takes for a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


config = yaml.safe_load((folder / "config" / f"{script}.yaml").read_text())
config = {"ENV_KWARGS": {}} | {name: number(value) for name, value in config.items()}
config |= json.loads(overrides)
own = dict(config)
if "layout" in config["ENV_KWARGS"]:
    from jaxmarl.environments.overcooked import overcooked_layouts

    layout = overcooked_layouts[config["ENV_KWARGS"]["layout"]]
    config["ENV_KWARGS"] = config["ENV_KWARGS"] | {"layout": layout}
train = jax.jit(module.make_train(config))
finals, wins = [], []
for seed in range(int(n_seeds)):
    logged.clear()
    jax.block_until_ready(train(jax.random.PRNGKey(seed)))
    jax.effects_barrier()
    name = "returns" if "returns" in logged[-1] else "returned_episode_returns"
    finals.append(float(np.mean([each[name] for each in logged[-N_LAST:]])))
    if "win_rate" in logged[-1]:
        wins.append(float(np.mean([each["win_rate"] for each in logged[-N_LAST:]])))
print("RESULT " + json.dumps({"finals": finals, "wins": wins, "config": own}))
