"""The tables of RESULTS.md, Capacity: what an update needs, takes and exchanges.

python benchmarks/capacity.py memory
python benchmarks/capacity.py time
python benchmarks/capacity.py communication
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxagents as ja
from jaxagents.compiler.program_costs import Costs
from jaxagents.experiments.config_files.file import load_config
from jaxagents.experiments.make_agent import agent_class, make_environment
from jaxagents.experiments.planning import (
    Links,
    communication_of_update,
    measure_share,
    memory_of_update,
    share_of,
)
from jaxagents.ippo.population.memory import bytes_of_member

CONFIGS = Path(__file__).parent.parent / "configs"
CASES = {
    "cartpole": "",
    "pendulum": "",
    "simple_spread": "",
    "simple_spread_recurrent": "GRU of 64",
    "smax_3m": "",
    "smax_2s3z": "GRU of 128",
    "breakout": "convolutions",
    "overcooked": "convolutions",
}
BATCH_SIZES = (16, 64, 256, 1024, 4096)
DEVICES = (8, 64, 512)
ENVIRONMENTS_OF_DEVICE = 256


def make(name: str, batch_size: int, **settings: Any) -> Any:
    """Make the agent of a configuration, with as many minibatches as it has."""
    config = load_config(CONFIGS / f"{name}.yaml")
    minibatch_size = batch_size * config.agent.minibatch_size // config.agent.batch_size
    agent_config = replace(
        config.agent,
        batch_size=batch_size,
        minibatch_size=max(1, minibatch_size),
        progress_bar=False,
        **settings,
    )
    env, params = make_environment(config)
    return agent_class(env, params, config.agent_class)(env, params, agent_config)


def memory() -> None:
    """Compare XLA's account of an update's memory with the formula."""
    print("| Configuration | Environments | MB by XLA | MB by the formula | bytes a sample |")
    print("| --- | --- | --- | --- | --- |")
    for name, networks in CASES.items():
        agent = make(name, 256)
        total = memory_of_update(agent) or 0
        n_samples = agent.config.steps_per_update * agent.environments.n_actors
        label = f"{name}, {networks}" if networks else name
        print(
            f"| {label} | 256 | {total / 1e6:,.0f} | {bytes_of_member(agent) / 1e6:,.0f} | "
            f"{total / n_samples:,.0f} |",
            flush=True,
        )


def time_of_updates() -> None:
    """Time updates of simple_spread by the number of environments, and fit a line."""
    agents = {n: make("simple_spread", n, n_evals=0) for n in BATCH_SIZES}
    shares = {n: measure_share(agent, ja.HyperParameters()) for n, agent in agents.items()}
    seconds = {n: share.update_seconds for n, share in shares.items() if share is not None}
    sizes, times = np.array(list(seconds)), np.array(list(seconds.values()))
    # Relative errors count: each row is divided by its time.
    rows = np.stack([np.ones(len(sizes)), sizes], axis=1) / times[:, None]
    fixed, per_environment = np.linalg.lstsq(rows, np.ones(len(sizes)))[0]
    print("| Environments | ms an update | by the line | million steps/s |")
    print("| --- | --- | --- | --- |")
    for n, taken in seconds.items():
        line = fixed + per_environment * n
        print(f"| {n:,} | {1e3 * taken:,.1f} | {1e3 * line:,.1f} | {128 * n / taken / 1e6:,.2f} |")
    print(f"\n{1e3 * fixed:.2f} ms + {1e6 * per_environment:.1f} µs an environment")


def communication() -> None:
    """Count what a device exchanges per update, and how long that takes over assumed links."""
    titles = [f"ms, {n} devices" for n in DEVICES]
    print(f"| Configuration | Parameters | MB | Calls | {' | '.join(titles)} |")
    print(f"| --- | --- | --- | --- |{' --- |' * len(titles)}")
    for name in CASES:
        counted = {n: communication_of(name, n) for n in DEVICES}
        fewest = counted[DEVICES[0]]
        cells = [f"{1e3 * Links().seconds(each, n):.2f}" for n, each in counted.items()]
        runner = make(name, ENVIRONMENTS_OF_DEVICE).runners.shapes()
        parameters = jax.tree.leaves((runner.actor.params, runner.critic.params))
        print(
            f"| {name} | {sum(leaf.size for leaf in parameters):,} | "
            f"{fewest.n_bytes / 1e6:.2f} | {fewest.n_calls} | {' | '.join(cells)} |",
            flush=True,
        )


def communication_of(name: str, n_devices: int) -> Costs:
    """Count what one of some devices exchanges in an update."""
    agent = make(name, n_devices * ENVIRONMENTS_OF_DEVICE, n_evals=0)
    share = type(agent)(agent.env, agent.env_params, share_of(agent.config, n_devices))
    return communication_of_update(agent, share, n_devices)


def main() -> None:
    """Print one of the tables."""
    tables = {"memory": memory, "time": time_of_updates, "communication": communication}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=list(tables))
    tables[parser.parse_args().table]()


if __name__ == "__main__":
    main()
