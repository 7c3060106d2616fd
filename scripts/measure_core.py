"""Print how far the algorithm lies from what users call, and how much code there is.

    python scripts/measure_core.py

The measures of docs/architecture.md: package frames between `train` and `jax.grad`, files that
take part in a gradient step, lines of the central file and of the update, types of experience,
modules and lines, and accesses to private attributes of other objects.
"""

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import jaxagents as ja
from jaxagents.ippo.base import IPPOBase

PACKAGE = Path(ja.__file__).parent
EXPERIENCE = ("TimeStep", "Move", "Transition", "Record", "RecordedStep", "Rollout", "Batch")


def frames_to_gradient(agent: IPPOBase) -> int:
    """Count the package's frames from `train`, itself included, to `jax.grad`."""
    depths: list[int] = []
    grad = jax.grad

    def count(*args: Any, **kwargs: Any) -> Any:
        frames = [
            each for each in traceback.extract_stack() if each.filename.startswith(str(PACKAGE))
        ]
        names = [each.name for each in frames]
        start = names.index("train") if "train" in names else 0
        depths.append(len(frames) - start)
        return grad(*args, **kwargs)

    jax.grad = count
    try:
        agent.train(jax.random.key(0), ja.HyperParameters())
    finally:
        jax.grad = grad
    return max(depths)


def files_of_gradient_step(agent: IPPOBase) -> list[str]:
    """List the package's files whose functions run in a step of an actor's optimizer."""
    files: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            files.add(str(Path(name).relative_to(PACKAGE)))

    runner = agent.init(jax.random.key(0), ja.HyperParameters())

    def traced(runner: ja.Runner) -> Any:
        keys = agent.split_key(runner)
        after, transitions = agent.collector.collect(runner, keys.rollout)
        after, valuation = agent.networks.value_rollout(after, transitions)
        hyperparams = agent.hyperparams_of(runner)
        _, batch = agent.estimate_advantages(after, transitions, valuation, hyperparams)
        return batch, hyperparams, keys

    batch, hyperparams, keys = jax.eval_shape(traced, runner)
    fit = jax.vmap(agent.fit, axis_name="policies")
    sys.setprofile(note)
    try:
        jax.eval_shape(fit, {"actor": runner.actor}, batch, hyperparams, keys.actor)
    finally:
        sys.setprofile(None)
    return sorted(files)


def modules() -> Iterator[tuple[Path, ast.Module, int]]:
    """Yield the package's modules with their syntax trees and lines."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        yield path, ast.parse(text), text.count("\n")


def private_accesses(tree: ast.Module) -> int:
    """Count accesses to private attributes of objects other than the method's own."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and not (
            isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in ("super", "type")
        )
        and node.attr not in ("_replace", "_asdict", "_fields", "_field_defaults", "_make")
        for node in ast.walk(tree)
    )


def lines_of(function: Callable[..., Any]) -> int:
    """Count the lines of a function."""
    return len(inspect.getsource(function).splitlines())


def main() -> None:
    """Print the table."""
    env, env_params = ja.make("gymnax/CartPole-v1")
    config = ja.AgentConfig(n_steps=1, n_evals=0, progress_bar=False)
    agent = ja.DiscreteIPPO(env, env_params, config)
    files = files_of_gradient_step(agent)
    every = list(modules())
    classes = {
        node.name
        for _, tree, _ in every
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    tuples = sum(
        isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
        for _, tree, _ in every
        for node in ast.walk(tree)
    )
    page = (IPPOBase.collect_and_learn, IPPOBase.learn)
    rows = {
        "frames from train to jax.grad": frames_to_gradient(agent),
        "files of a gradient step": f"{len(files)}: {', '.join(files)}",
        "lines of ippo/base.py": (PACKAGE / "ippo/base.py").read_text().count("\n"),
        "lines of an update": sum(map(lines_of, page)),
        "types of experience": ", ".join(each for each in EXPERIENCE if each in classes),
        "named tuples of classes": f"{tuples} of {len(classes)}",
        "modules": len(every),
        "lines": sum(lines for *_, lines in every),
        "accesses to private attributes": sum(private_accesses(tree) for _, tree, _ in every),
    }
    for name, value in rows.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
