"""The zoo's entries, made from configurations: each is trained, and its final policy added.

Configurations that have an entry are left out; with --again, only those with one of this git
revision. So an interrupted call continues where it stopped: runs of this revision that have ended
are added, and others resumed. Each training is a process of its own, as by the command that the
card shows. A configuration whose environment needs a missing package is named and left out.

    python benchmarks/zoo.py                                 # all of configs/
    python benchmarks/zoo.py configs/cartpole.yaml --again   # train anew, and replace the entry
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jaxagents.errors import ExperimentError
from jaxagents.evaluation.run_files import read_yaml
from jaxagents.evaluation.runs import read_run
from jaxagents.evaluation.zoo import entry_ids, id_of, read_card, zoo_folder

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
COMMAND = (sys.executable, "-m", "jaxagents")
DONE = "added"  # a file in the directory of a run that is an entry


def ids_of(configs: Sequence[Path]) -> dict[Path, str]:
    """Return the id of each configuration's entry.

    It is the environment's. If an environment has several configurations, it is followed by the
    part of each name after the words that all of them begin with: simple_spread and
    simple_spread_recurrent become jaxmarl/MPE_simple_spread_v3 and
    jaxmarl/MPE_simple_spread_v3/recurrent.
    """
    envs = {path: str(read_yaml(path)["env"]) for path in configs}
    ids = {}
    for path, env in envs.items():
        names = [each.stem.split("_") for each, other in envs.items() if other == env]
        own = path.stem.split("_")
        words = zip(*names, strict=False)
        n_common = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, words)))
        rest = "_".join(own[n_common:])
        ids[path] = "/".join([id_of(env), *([rest] if rest else [])])
    return ids


def revision() -> str:
    """Return the git revision of the repository."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def is_made(entry_id: str, again: bool) -> bool:
    """Return True if there is an entry already; if it is made again, one of this revision."""
    if entry_id not in entry_ids():
        return False
    made_by = read_card(zoo_folder() / entry_id).get("git") or {}
    return not again or made_by.get("revision") == revision()


def run_of(config: Path, runs: Path) -> Path | None:
    """Return the latest run of a configuration that is not an entry yet."""
    found = [
        path
        for path in runs.glob(f"{config.stem}-*-*-*")
        if path.name.count("-") == config.stem.count("-") + 3 and not (path / DONE).exists()
    ]
    return max(found, key=lambda path: path.name, default=None)


def train(config: Path, runs: Path) -> Path | None:
    """Train a configuration, or continue its interrupted run; None: it cannot be trained here."""
    run = run_of(config, runs)
    if run is not None and read_run(run).final_summary is not None:
        return run
    if run is not None and any((run / "checkpoints").glob("[0-9]*")):
        arguments = ["resume", str(run), "--quiet"]
    else:
        shown = config.relative_to(ROOT) if config.is_relative_to(ROOT) else config
        arguments = ["train", str(shown), "--quiet", "--runs_dir", str(runs)]
    finished = subprocess.run([*COMMAND, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or ["no output"]
        print(f"{config.stem}: left out: {lines[-1]}", flush=True)
        return None
    return run_of(config, runs)


def add(run: Path, entry_id: str) -> bool:
    """Add a run to the zoo, in a process of its own; return True on success."""
    command = [*COMMAND, "zoo", "add", str(run), "--id", entry_id, "--replace"]
    finished = subprocess.run(command, cwd=ROOT)
    if finished.returncode == 0:
        (run / DONE).touch()
    return finished.returncode == 0


def main() -> int:
    """Make the entries one after the other; the exit status is 1 if one was left out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configs", nargs="*", type=Path, help="by default all of configs/")
    parser.add_argument("--again", action="store_true", help="replace entries that exist")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "zoo", help="folder of their runs"
    )
    parsed = parser.parse_args()
    configs = [path.resolve() for path in parsed.configs]
    runs = parsed.runs.resolve() / revision()[:12]
    shipped = sorted(CONFIGS.glob("*.yaml"))
    ids = ids_of([*shipped, *(path for path in configs if path not in shipped)])
    status = 0
    for config in configs or shipped:
        if is_made(ids[config], parsed.again):
            continue
        started = time.perf_counter()
        try:
            run = train(config, runs)
        except ExperimentError as error:
            print(f"{config.stem}: left out: {error}", flush=True)
            run = None
        if run is None or not add(run, ids[config]):
            status = 1
            continue
        print(f"{config.stem}: {time.perf_counter() - started:,.0f} s", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
