"""The package's modules import from lower layers only, and nothing heavy before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jaxagents

PACKAGE = Path(jaxagents.__file__).parent

# Top to bottom; the modules of a set do not import each other.
LAYERS = [
    {"__main__"},
    {"cli"},
    {
        "commands.environments",
        "commands.policies",
        "commands.profiling",
        "commands.results",
        "commands.training",
    },
    {"commands.arguments", "commands.status"},
    {"reporting.page"},
    {"reporting.configuration", "reporting.pictures", "reporting.tables", "reporting.words"},
    {"reporting.numbers"},
    {"printing"},
    {"experiment", "profiling", "starting_file"},
    {"building", "trackers"},
    {"configuration", "replay"},
    {"rendering.scenes"},
    {
        "rendering.classic_control",
        "rendering.grids",
        "rendering.hunting",
        "rendering.images",
        "rendering.library",
        "rendering.mpe",
        "rendering.smax",
        "rendering.strips",
    },
    {"rendering.scene"},
    {"rendering.canvas"},
    {"sources"},
    {"ippo.discrete", "ippo.continuous", "ippo.stages", "exporting"},
    {"ippo.base"},
    {"ippo.trainer"},
    {"ippo.loop"},
    {"ippo.player", "recording", "plotting", "comparison"},
    {"curves"},
    {"runs"},
    {"trajectories"},
    {"callbacks", "progress", "ippo.actor_critic", "evaluation", "saving", "provenance"},
    {"tracking"},
    {"checkpointing", "finiteness", "interruption"},
    {"tables"},
    {"leaves"},
    {"architecture", "batches", "compilation", "concurrency", "schedules"},
    {"advantages", "losses", "normalization", "optimization", "policies", "recurrence"},
    {"minibatches", "statistics", "networks", "programs"},
    {"products"},
    {"environments.arguments"},
    {"environments.registry"},
    {"environments.batch"},
    {"environments.examination", "environments.features"},
    {"environments.gymnax", "environments.jaxmarl", "environments.hunting"},
    {"environments.jaxmarl_families"},
    {"environments.hunting_pictures", "environments.partial_import", "environments.protocol"},
    {"environments.silence"},
    {"environments.spaces", "tracing", "types", "unrolling"},
    {"config", "fields"},
    {"drawing"},
    {"hyperparameters", "errors", "resampling", "palette", "reporting.markup"},
    {"files", "gradients", "rendering.animation", "selection"},
]
LEVEL = {module: len(LAYERS) - i for i, layer in enumerate(LAYERS) for module in layer}
# Their __init__ files hold names at most.
PACKAGES = {"", "commands", "ippo", "environments", "rendering", "reporting"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported_modules(path: Path) -> set[str]:
    """Find every import of the package in a file, the lazy ones inside functions included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxagents"):
            module = (node.module or "").removeprefix("jaxagents").removeprefix(".")
            members = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            names |= (members & LEVEL.keys()) or {module}
        elif isinstance(node, ast.Import):
            names |= {
                alias.name.removeprefix("jaxagents.")
                for alias in node.names
                if alias.name.startswith("jaxagents.")
            }
    return names


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_has_a_layer():
    assert FILES.keys() - PACKAGES == LEVEL.keys()


@pytest.mark.parametrize("module", sorted(FILES.keys() - PACKAGES))
def test_a_module_imports_from_lower_layers_only(module):
    too_high = {
        name for name in imported_modules(FILES[module]) - PACKAGES if LEVEL[name] >= LEVEL[module]
    }
    assert not too_high


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, jaxagents; print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


def test_every_public_name_can_be_had():
    for name in jaxagents.__all__:
        assert getattr(jaxagents, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'DiscretIPPO'"):
        _ = jaxagents.DiscretIPPO
