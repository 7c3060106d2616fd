# pyright: strict
"""The public API as users write it: pyright must know every type, in its strict mode."""

import jax

import jaxagents as ja

env, env_params = ja.make("hunting/discrete")
config = ja.AgentConfig(n_steps=3)
hyperparams = ja.HyperParameters(
    gamma=0.99, actor_optimizer_params=ja.OptimizerParams(learning_rate=1e-3)
)
hyperparams = ja.HyperParameters(gamma=0.99, learning_rate=1e-3)
agent = ja.DiscreteIPPO(env, env_params, config)
runner, metrics = agent.train(jax.random.key(0), hyperparams)
agent.collect_training(runner, metrics)
evaluation = agent.eval(jax.random.key(1), n_evals=100, greedy=True)
stats = agent.summarize(evaluation["returns"])
runner = agent.init(jax.random.key(0), hyperparams)
runner, update_metrics = agent.step(runner)
runner, metrics = agent.resume()
observation, env_state = env.reset(jax.random.key(2), env_params)
action = agent.policy(runner, observation)
value = agent.value(runner, observation)
print(
    runner.n_updates_done,
    stats.mean,
    update_metrics["kl"],
    runner.actor.params,
    action,
    value,
    env_state,
)


class OneStep(ja.DiscreteIPPO):
    """An algorithm of one's own."""

    def adapted(self, runner: ja.Runner, metrics: dict[str, jax.Array]) -> ja.Runner:
        """Leave the runner as it is."""
        return super().adapted(runner, metrics)
