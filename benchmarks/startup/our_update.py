"""Train one update of a configuration: ``python our_update.py STARTED N FILE --KEY VALUE ...``."""

import sys

from ledger import Ledger

ledger = Ledger(float(sys.argv[1]))


def main() -> None:
    """Train, without evaluations, checkpoints and files."""
    with ledger.stage("imports"):
        import jax

        import jaxagents as ja
        from jaxagents.experiments.config_files.file import load_config
        from jaxagents.experiments.make_agent import make_environment
    ledger.listen()
    sizes = ("--agent.n_steps", sys.argv[2], "--agent.n_evals", "0", "--evaluation.mode", "last")
    config = load_config(sys.argv[3], (*sizes, "--agent.progress_bar", "false", *sys.argv[4:]))
    with ledger.stage("environment"):
        env, env_params = make_environment(config)
    with ledger.stage("agent"):
        agent = ja.IPPO(env, env_params, config.agent)
    with ledger.stage("updates"):
        jax.block_until_ready(agent.train(jax.random.key(0), config.hyperparams))
    ledger.mark("updates")
    ledger.tell()


main()
