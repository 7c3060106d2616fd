"""How fast is a population, and what do its checkpoints cost?

Members one after the other, as one population, and with checkpoints and a tracker; medians of
ratios, all sides in turns, compilation left out.

    python benchmarks/populations.py --members 8 --rounds 5
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxagents as ja
from jaxagents.training.trackers import JsonLines

HYPERPARAMS = ja.HyperParameters()


def make_agent(env_id: str, folder: Path | None, **options: object) -> ja.IPPOBase:
    """Build an agent, with checkpoints and metrics in a folder, if one is given."""
    env, env_params = ja.make(env_id)
    config = ja.AgentConfig(
        n_evals=16,
        checkpoint_dir=None if folder is None else folder / "checkpoints",
        progress_bar=False,
        **options,
    )
    callbacks = [] if folder is None else [JsonLines(folder / "metrics.jsonl")]
    return ja.DiscreteIPPO(env, env_params, config, callbacks)


def main() -> None:
    """Print each side's seconds, and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="jaxmarl/MPE_simple_spread_v3")
    parser.add_argument("--recurrent", default=None)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--frequency", type=int, default=10, help="updates between evaluations")
    parsed = parser.parse_args()
    keys = jax.vmap(jax.random.key)(jnp.arange(parsed.members))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        options = {
            "recurrent": parsed.recurrent,
            "n_steps": parsed.updates,
            "eval_frequency": parsed.frequency,
        }
        plain = make_agent(parsed.env, None, **options)
        saving = make_agent(parsed.env, folder, **options)

        def one_by_one() -> None:
            for key in keys:
                jax.block_until_ready(plain.train(key, HYPERPARAMS))

        sides: dict[str, Callable[[], object]] = {
            "one after the other": one_by_one,
            "population": lambda: jax.block_until_ready(plain.train(keys, HYPERPARAMS)),
            "with checkpoints": lambda: jax.block_until_ready(saving.train(keys, HYPERPARAMS)),
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for i in range(parsed.rounds + 1):
            # Each goes first in turn: a machine may slow down while it works.
            names = list(sides)[i % len(sides) :] + list(sides)[: i % len(sides)]
            for side in names:
                started = time.perf_counter()
                sides[side]()
                if i:  # the first round compiles
                    seconds[side].append(time.perf_counter() - started)
                if folder.exists():
                    folder.rename(Path(name) / f"done-{i}-{side.replace(' ', '-')}")
                    folder.mkdir()
    for side, values in seconds.items():
        print(f"{side:20} {statistics.median(values):7.2f} s")
    pairs = zip(seconds["one after the other"], seconds["population"], strict=True)
    print(f"a population is {statistics.median(a / b for a, b in pairs):.2f} times as fast")
    pairs = zip(seconds["with checkpoints"], seconds["population"], strict=True)
    print(f"checkpoints and metrics: {statistics.median(a / b for a, b in pairs):.3f} of its time")


if __name__ == "__main__":
    main()
