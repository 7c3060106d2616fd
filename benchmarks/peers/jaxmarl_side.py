"""JaxMARL's own scripts, and our agent with their hyperparameters.

The scripts come from a checkout of JaxMARL (revision c793d09) in build/peers/JaxMARL. They build
one network for the first agent's spaces, so agents are alike and discrete here.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxagents as ja
from jaxagents.networks.network import MLP, PolicyNetwork, ValueNetwork

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1] / "build" / "peers" / "JaxMARL"


class Script(NamedTuple):
    """A script of JaxMARL on one environment."""

    name: str
    env: str  # ours
    n_steps: int  # environment steps
    env_kwargs: Mapping[str, Any] = {}  # of our environment
    overrides: Mapping[str, Any] = {}  # of the script's configuration
    logged_times: int = 1  # by which the script multiplies the returns that it logs
    defaults: Mapping[str, Any] = {}  # of our agent with its own hyperparameters


def _mpe(name: str, n_agents: int) -> Script:
    # Their log multiplies rewards by the number of agents.
    return Script(
        name="ippo_ff_mpe",
        env=f"jaxmarl/{name}",
        n_steps=500_000,
        overrides={"ENV_NAME": name},
        logged_times=n_agents,
    )


def _recurrent_mpe(name: str, n_agents: int) -> Script:
    return _mpe(name, n_agents)._replace(
        name="ippo_rnn_mpe", n_steps=300_000, defaults={"recurrent": "gru"}
    )


def _smax(scenario: str) -> Script:
    kwargs = {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"}
    return Script(
        name="ippo_rnn_smax",
        env="jaxmarl/HeuristicEnemySMAX",
        n_steps=500_000,
        overrides={"MAP_NAME": scenario},
        env_kwargs={"scenario": scenario, **kwargs},
        defaults={"recurrent": "gru"},
    )


_SHAPED_STEPS = 750_000
TASKS = {
    "simple, feed-forward": _mpe("MPE_simple_v3", n_agents=1),
    "spread, feed-forward": _mpe("MPE_simple_spread_v3", n_agents=3),
    "reference, feed-forward": _mpe("MPE_simple_reference_v3", n_agents=2),
    "spread, recurrent": _recurrent_mpe("MPE_simple_spread_v3", n_agents=3),
    "reference, recurrent": _recurrent_mpe("MPE_simple_reference_v3", n_agents=2),
    "cramped_room": Script(
        name="ippo_ff_overcooked",
        env="jaxmarl/overcooked",
        n_steps=2 * _SHAPED_STEPS,
        overrides={
            "ENV_KWARGS": {"layout": "cramped_room"},
            "REW_SHAPING_HORIZON": _SHAPED_STEPS,
        },
        env_kwargs={"layout": "cramped_room"},
        defaults={"shaped_reward_steps": _SHAPED_STEPS},
    ),
    "SMAX 3m": _smax("3m"),
    "SMAX 2s3z": _smax("2s3z"),
}


def train(task: str, n_seeds: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the last returns by seed, means over actors, and the script's configuration."""
    script = TASKS[task]
    overrides = json.dumps({**script.overrides, "TOTAL_TIMESTEPS": script.n_steps})
    command = [sys.executable, str(HERE / "jaxmarl_learning.py"), str(CHECKOUT), script.name]
    finished = subprocess.run(
        [*command, overrides, str(n_seeds)], stdout=subprocess.PIPE, text=True, check=True
    )
    line = next(line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    return np.array(result["finals"]) / script.logged_times, result["config"]


def configure(task: str, sizes: Mapping[str, Any]) -> tuple[ja.AgentConfig, ja.HyperParameters]:
    """Configure our agent as the script."""
    script = TASKS[task]
    n_envs, rollout_length = int(sizes["NUM_ENVS"]), int(sizes["NUM_STEPS"])
    is_recurrent = "GRU_HIDDEN_DIM" in sizes
    networks: dict[str, Any] = {}
    if is_recurrent:
        hidden = (int(sizes["FC_DIM_SIZE"]),)
        layers = ja.Layers(
            hidden_sizes=hidden,
            memory_size=int(sizes["GRU_HIDDEN_DIM"]),
            sizes_after_memory=hidden,
            activation="relu",
        )
    else:
        layers = ja.Layers(activation=sizes["ACTIVATION"])
    if script.name == "ippo_ff_overcooked":
        env, params = ja.make(script.env, **script.env_kwargs)
        n_actions = env.action_space(params).n
        networks = {  # of flattened images
            "actor_network": PolicyNetwork(n_actions, MLP(observation_ndim=3)),
            "critic_network": ValueNetwork(MLP(observation_ndim=3)),
        }
    optimizer = ja.OptimizerParams(learning_rate=sizes["LR"], grad_clip=sizes["MAX_GRAD_NORM"])
    return ja.textbook_ppo(
        n_steps=script.n_steps // (n_envs * rollout_length),
        batch_size=n_envs,
        rollout_length=rollout_length,
        n_minibatches=int(sizes["NUM_MINIBATCHES"]),
        recurrent="gru" if is_recurrent else None,
        actor_epochs=int(sizes["UPDATE_EPOCHS"]),
        critic_epochs=int(sizes["UPDATE_EPOCHS"]),
        learning_rate_schedule="linear" if sizes["ANNEAL_LR"] else "constant",
        shaped_reward_steps=sizes.get("REW_SHAPING_HORIZON"),
        time_limits="terminal",
        clip_values=True,
        actor_layers=layers,
        critic_layers=layers,
        n_evals=0,
        progress_bar=False,
        **networks,
        gamma=sizes["GAMMA"],
        gae_lambda=sizes["GAE_LAMBDA"],
        eps_clip=sizes["CLIP_EPS"],
        vf_coeff=sizes["VF_COEF"] / 2,  # of half the squared error
        ent_coeff=sizes["ENT_COEF"],
        actor_optimizer_params=optimizer,
        critic_optimizer_params=optimizer,
    )
