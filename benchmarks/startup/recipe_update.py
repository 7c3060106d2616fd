"""Train one update of JaxMARL's recipe: ``python recipe_update.py STARTED N [--recurrent]``."""

import sys
from pathlib import Path

from ledger import Ledger

ledger = Ledger(float(sys.argv[1]))
sys.path.append(str(Path(__file__).parents[1]))


def main() -> None:
    """Train from one key, as one program."""
    with ledger.stage("imports"):
        import jax

        if "--recurrent" in sys.argv:
            import jaxmarl_recurrent_recipe as recipe
        else:
            import jaxmarl_recipe as recipe
    ledger.listen()
    with ledger.stage("environment"):
        train = recipe.make_train(int(sys.argv[2]))
    with ledger.stage("updates"):
        jax.block_until_ready(jax.jit(train)(jax.random.key(0)))
    ledger.mark("updates")
    ledger.tell()


main()
