"""What XLA's profiler says about an update: kernels, and the share of the time without any."""

from collections.abc import Sequence
from functools import partial

import jax
import jaxmarl_recipe
import tuning
from learning import make_agent
from update_speed import OVERRIDES

from accelerator.clock import Clock
from accelerator.profile_of_kernels import traced
from accelerator.table import Row
from accelerator.trainings import SPREAD, is_on_cpu, overrides_of, recipe, sizes_of
from accelerator.turns import Case, Outcome
from jaxagents.experiments.config_files.file import load_config

_N_UPDATES = 5


def cases(is_small: bool) -> Sequence[Case]:
    """Our updates and the recipe's."""
    sizes = [sizes_of(n, is_small) for n in ((16,) if is_small or is_on_cpu() else (16, 1_024))]
    found = []
    for each in sizes:
        name = f"{each['n_envs']:,} environments"
        found.append(Case(name, partial(_run, case=name, sizes=each, is_small=is_small)))
    return found


def _run(section: str, clock: Clock, case: str, sizes: dict[str, int], is_small: bool) -> Outcome:
    n_updates = 1 if is_small else _N_UPDATES
    config = load_config(SPREAD, (*OVERRIDES, *overrides_of(sizes)))
    go_on, _ = tuning.begin(make_agent(config), config.hyperparams)
    text = traced(partial(go_on, n_updates)).text(n_updates)
    rows = [Row(section, case, "jaxagents", note=text)]
    if is_small or clock.left() < 0:
        return Outcome(rows)
    side = recipe(jaxmarl_recipe, jaxmarl_recipe.STOCK, sizes | {"n_updates": n_updates})
    jax.block_until_ready(side.train(0))
    text = traced(partial(side.train, 0)).text(n_updates)
    rows.append(Row(section, case, side.name, note=f"{text} (initialisation included)"))
    return Outcome(rows)
