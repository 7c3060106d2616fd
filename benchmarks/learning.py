"""Learning results: a configuration trained from several seeds, and its returns afterwards.

python benchmarks/learning.py configs/cartpole.yaml --seeds 3
python benchmarks/learning.py benchmarks/peers/jaxmarl_spread.yaml --seeds 8 --sampled \
        --agent.n_steps 488
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

import jaxagents as ja
from jaxagents.evaluation.success_rates import success_of_episodes, success_text
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.config_files.schema import ExperimentConfig
from jaxagents.experiments.make_agent import agent_class, make_environment

N_EVALS = 100


def make_agent(config: ExperimentConfig) -> ja.IPPOBase:
    """Build the configured agent."""
    env, env_params = make_environment(config)
    agent_config = dataclasses.replace(config.agent, progress_bar=False)
    return agent_class(env, env_params)(env, env_params, agent_config)


def final_return(agent: ja.IPPOBase, config: ExperimentConfig, seed: int, greedy: bool) -> float:
    """Train from a seed; return the mean over episodes of the sum over actors.

    Prints it, with what a diagnosis finds wrong with the training.
    """
    started = time.perf_counter()
    runner, history = jax.block_until_ready(agent.train(jax.random.key(seed), config.hyperparams))
    seconds = time.perf_counter() - started
    metrics = agent.eval(jax.random.key(1000 + seed), N_EVALS, greedy=greedy, runner=runner)
    mean = float(np.asarray(metrics["returns"]).sum(axis=1).mean())
    infos = {name: np.mean(value) for name, value in metrics.items() if name.startswith("info_")}
    text = "".join(f"   {name} {value:.2f}" for name, value in infos.items())
    success = agent.environments.success
    if success is not None and "success" in metrics:
        text = f"   {success_text(success_of_episodes(success, jax.device_get(metrics)))}{text}"
    print(f"  seed {seed}: return {mean:9.2f}{text}   trained in {seconds:6.1f} s", flush=True)
    for sentence in agent.diagnose(runner, history):
        print(f"    {sentence}", flush=True)
    return mean


def main() -> None:
    """Print each seed's return, and their mean, deviation and worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sampled", action="store_true", help="sample actions in evaluation")
    arguments, overrides = parser.parse_known_args()
    config = load_config(arguments.config, overrides)
    agent = make_agent(config)
    how = "sampled" if arguments.sampled else "greedy"
    print(f"{config.env}: {config.n_environment_steps:,} environment steps; {how}, {N_EVALS} evals")
    returns = [
        final_return(agent, config, seed, not arguments.sampled) for seed in range(arguments.seeds)
    ]
    print(f"  mean {np.mean(returns):.2f}, std {np.std(returns):.2f}, worst {min(returns):.2f}")


if __name__ == "__main__":
    main()
