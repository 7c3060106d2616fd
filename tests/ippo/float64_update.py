"""One policy's PPO update, recomputed in float64 with numpy and gradients derived by hand.

Nothing of the package's mathematics is used. A network is a list of arrays, ``[kernel, bias,
kernel, bias, ...]``, of dense layers with tanh between them; a Gaussian actor's ends with its log
standard deviation.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Arrays = list[np.ndarray]
Derivative = tuple[Arrays, dict[str, Any]]
"""The gradients of a loss, and its statistics."""
Drawn = list[list[np.ndarray]]
"""The environments of each epoch's minibatches."""


def arrays_of(params: Any, policy: int) -> Arrays:
    """Return one policy's parameters, or the moments of their gradients, in float64."""
    own = [params["log_std"]] if "log_std" in params else []
    network = params.get("network", params)["params"]
    torso = network["torso"]
    layers = [torso[name] for name in sorted(torso)] + [network["Dense_0"]]
    leaves = [leaf for layer in layers for leaf in (layer["kernel"], layer["bias"])] + own
    return [np.asarray(leaf[policy], np.float64) for leaf in leaves]


def outputs_of(arrays: Arrays, features: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a network's outputs, and the inputs of each of its layers."""
    inputs, hidden = [], features
    layers = list(zip(arrays[0::2], arrays[1::2], strict=False))
    for index, (kernel, bias) in enumerate(layers):
        inputs.append(hidden)
        hidden = hidden @ kernel + bias
        if index < len(layers) - 1:
            hidden = np.tanh(hidden)
    return hidden, inputs


def gradients_of(arrays: Arrays, inputs: list[np.ndarray], slope: np.ndarray) -> Arrays:
    """Propagate the slope of a loss by the outputs ``[samples, outputs]`` back to the arrays."""
    gradients: Arrays = []
    for index in reversed(range(len(inputs))):
        gradients = [inputs[index].T @ slope, slope.sum(axis=0), *gradients]
        # The slope of tanh is 1 - tanh².
        slope = (slope @ arrays[2 * index].T) * (1 - inputs[index] ** 2)
    return gradients


def norm_of(gradients: Arrays) -> float:
    return np.sqrt(sum(np.sum(each**2) for each in gradients))


class Optimizer(NamedTuple):
    """A network, Adam's moments of its gradients, and the steps taken."""

    arrays: Arrays
    first: Arrays
    second: Arrays
    n_steps: int

    def step(
        self, gradients: Arrays, params: Any, largest_size: float = 1.0
    ) -> tuple["Optimizer", float, float]:
        """Take a clipped step of Adam; return the gradient's norm and the unclipped step's size."""
        norm = norm_of(gradients)
        gradients = [each * min(1.0, params.grad_clip / norm) for each in gradients]
        n_steps = self.n_steps + 1
        first = [0.9 * m + 0.1 * g for m, g in zip(self.first, gradients, strict=True)]
        second = [0.999 * v + 0.001 * g**2 for v, g in zip(self.second, gradients, strict=True)]
        steps = [
            (m / (1 - 0.9**n_steps)) / (np.sqrt(v / (1 - 0.999**n_steps)) + params.eps)
            for m, v in zip(first, second, strict=True)
        ]
        size = np.sqrt(np.mean(np.concatenate([each.ravel() for each in steps]) ** 2))
        rate = params.learning_rate * min(1.0, largest_size / size)
        arrays = [array - rate * each for array, each in zip(self.arrays, steps, strict=True)]
        return Optimizer(arrays, first, second, n_steps), norm, size


class Samples(NamedTuple):
    """One policy's experience, ``[time, envs, actors, ...]``; features are normalised."""

    features: np.ndarray
    next_features: np.ndarray  # after each step, before any reset
    mask: np.ndarray | None  # of available actions
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    active: np.ndarray


def advantages_of(
    samples: Samples, value: np.ndarray, next_value: np.ndarray, discount: float, gae_lambda: float
) -> np.ndarray:
    advantage = np.zeros_like(value)
    for place in np.ndindex(value.shape[1:]):
        following = 0.0
        for t in reversed(range(len(value))):
            at = (t, *place)
            if samples.terminated[at]:
                following = samples.reward[at] - value[at]
            else:
                if samples.truncated[at]:
                    following = 0.0
                delta = samples.reward[at] + discount * next_value[at] - value[at]
                following = delta + discount * gae_lambda * following
            advantage[at] = following
    return advantage


def log_probs_of(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


class Policy(NamedTuple):
    """A minibatch's log probabilities and entropies, and their slopes by the outputs."""

    log_prob: np.ndarray
    entropy: np.ndarray
    log_prob_slope: np.ndarray
    entropy_slope: np.ndarray
    log_prob_slope_of_std: np.ndarray | None  # by the log standard deviation


def categorical(logits: np.ndarray, action: np.ndarray, mask: np.ndarray | None) -> Policy:
    if mask is not None:
        logits = np.where(mask, logits, -1e9)
    log_p = log_probs_of(logits)
    p = np.exp(log_p)
    entropy = -np.sum(p * log_p, axis=-1)
    chosen = np.eye(logits.shape[-1])[action]
    return Policy(
        log_prob=np.sum(chosen * log_p, axis=-1),
        entropy=entropy,
        log_prob_slope=chosen - p,
        entropy_slope=-p * (log_p + entropy[..., None]),
        log_prob_slope_of_std=None,
    )


def gaussian(mean: np.ndarray, log_std: np.ndarray, action: np.ndarray) -> Policy:
    """Actions are those before clipping or squashing, whose constant factor no ratio has."""
    deviation = (action - mean) / np.exp(log_std)
    log_density = -(deviation**2) / 2 - log_std - np.log(2 * np.pi) / 2
    entropy = np.sum(log_std + np.log(2 * np.pi * np.e) / 2)
    return Policy(
        log_prob=log_density.sum(axis=-1),
        entropy=np.full(len(mean), entropy),
        log_prob_slope=deviation / np.exp(log_std),
        entropy_slope=np.zeros_like(mean),
        log_prob_slope_of_std=deviation**2 - 1,
    )


def policy_of(
    arrays: Arrays, features: np.ndarray, action: np.ndarray, mask: np.ndarray | None
) -> tuple[Policy, list[np.ndarray]]:
    outputs, inputs = outputs_of(arrays, features)
    if len(arrays) % 2 == 0:
        return categorical(outputs, action, mask), inputs
    return gaussian(outputs, arrays[-1], action), inputs


class Minibatch(NamedTuple):
    """The samples of weight 1 of a minibatch, ``[samples, ...]``."""

    features: np.ndarray
    mask: np.ndarray | None
    action: np.ndarray
    old_log_prob: np.ndarray
    advantage: np.ndarray  # standardised
    value_target: np.ndarray


def actor_gradients(arrays: Arrays, batch: Minibatch, hyperparams: Any, scale: float) -> Derivative:
    """Differentiate scale · (-mean(min(ρA, clip(ρ) A)) - c mean(H))."""
    policy, inputs = policy_of(arrays, batch.features, batch.action, batch.mask)
    log_ratio = policy.log_prob - batch.old_log_prob
    ratio, advantage = np.exp(log_ratio), batch.advantage
    clip, n = hyperparams.eps_clip, len(ratio)
    clipped = np.clip(ratio, 1 - clip, 1 + clip)
    surrogate = np.minimum(ratio * advantage, clipped * advantage)
    # Beyond the clip only samples that would gain by returning have a gradient.
    flat = ((advantage > 0) & (ratio > 1 + clip)) | ((advantage < 0) & (ratio < 1 - clip))
    by_log_prob = -scale / n * np.where(flat, 0.0, ratio * advantage)
    by_entropy = -scale / n * hyperparams.ent_coeff
    slope = by_log_prob[:, None] * policy.log_prob_slope + by_entropy * policy.entropy_slope
    gradients = gradients_of(arrays, inputs, slope)
    if policy.log_prob_slope_of_std is not None:
        by_std = (by_log_prob[:, None] * policy.log_prob_slope_of_std).sum(axis=0)
        gradients.append(by_std + n * by_entropy)
    entropy = policy.entropy.mean()
    return gradients, {
        "actor_loss": -surrogate.mean() - hyperparams.ent_coeff * entropy,
        "entropy": entropy,
        "kl": np.mean(ratio - 1 - log_ratio),
        "clip_fraction": np.mean(np.abs(ratio - 1) > clip),
    }


def critic_gradients(arrays: Arrays, batch: Minibatch, vf_coeff: float) -> Derivative:
    """Differentiate c mean((V - target)²)."""
    outputs, inputs = outputs_of(arrays, batch.features)
    error = outputs[:, 0] - batch.value_target
    slope = 2 * vf_coeff * error[:, None] / len(error)
    return gradients_of(arrays, inputs, slope), {"critic_loss": vf_coeff * np.mean(error**2)}


class ValueStatistics(NamedTuple):
    """Running statistics of value targets."""

    weight: float
    mean: float
    variance: float

    @property
    def std(self) -> float:
        return float(np.sqrt(self.variance))

    def updated(self, targets: np.ndarray) -> "ValueStatistics":
        """Weight earlier samples by 0.99, and pool the moments."""
        weights = np.array([0.99 * self.weight, len(targets)])
        means, squares = (
            np.array(pair) @ weights / weights.sum()
            for pair in (
                (self.mean, targets.mean()),
                (self.variance + self.mean**2, np.mean(targets**2)),
            )
        )
        return ValueStatistics(weights.sum(), means, squares - means**2)


class Fit(NamedTuple):
    """A network after its epochs."""

    network: Optimizer
    metrics: dict[str, Any]  # means over the last epoch's samples
    norms: list[float]  # of every gradient before its clipping
    sizes: list[float]  # of every step before its clipping


class Update(NamedTuple):
    """The result of an update."""

    actor: Fit
    critic: Fit
    value_statistics: ValueStatistics | None
    scale: float  # of the actor's loss


def update(
    actor: Optimizer,
    critic: Optimizer,
    samples: Samples,
    hyperparams: Any,
    minibatches: dict[str, Drawn],
    value_statistics: ValueStatistics | None = None,
) -> Update:
    """Do one update.

    Args:
        actor: Before the update.
        critic: Before the update.
        samples: The experience.
        hyperparams: Floats.
        minibatches: Of "actor" and "critic".
        value_statistics: Those by which values are normalised, if they are.
    """
    value, next_value = (
        outputs_of(critic.arrays, features)[0][..., 0]
        for features in (samples.features, samples.next_features)
    )
    if value_statistics is not None:
        mean, std = value_statistics.mean, value_statistics.std
        value, next_value = mean + std * value, mean + std * next_value
    advantage = advantages_of(samples, value, next_value, hyperparams.gamma, hyperparams.gae_lambda)
    target, of_active = advantage + value, advantage[samples.active]
    scale = min(1.0, of_active.std() / samples.reward[samples.active].std())
    standardised = (advantage - of_active.mean()) / (of_active.std() + 1e-8)
    if value_statistics is not None:
        critic, target, value_statistics = _normalised(
            critic, target, samples.active, value_statistics
        )

    def epochs(name: str) -> list[list[Minibatch]]:
        return [
            [_minibatch(samples, envs, actor.arrays, standardised, target) for envs in epoch]
            for epoch in minibatches[name]
        ]

    def differentiate_actor(arrays: Arrays, batch: Minibatch) -> Derivative:
        return actor_gradients(arrays, batch, hyperparams, scale)

    def differentiate_critic(arrays: Arrays, batch: Minibatch) -> Derivative:
        return critic_gradients(arrays, batch, hyperparams.vf_coeff)

    return Update(
        _fit(actor, epochs("actor"), hyperparams.actor_optimizer_params, differentiate_actor),
        _fit(critic, epochs("critic"), hyperparams.critic_optimizer_params, differentiate_critic),
        value_statistics,
        scale,
    )


def textbook_update(
    actor: Optimizer,
    critic: Optimizer,
    samples: Samples,
    hyperparams: Any,
    minibatches: Drawn,
) -> dict[str, Fit]:
    """Do one update of PPO as published: one loss, one clip of its gradient, and Adam.

    Args:
        actor: Before the update.
        critic: Before the update.
        samples: The experience.
        hyperparams: Floats; the actor's clip of gradients is that of both networks.
        minibatches: The steps ``[time * envs]`` of each epoch's.
    """
    value, next_value = (
        outputs_of(critic.arrays, features)[0][..., 0]
        for features in (samples.features, samples.next_features)
    )
    advantage = advantages_of(samples, value, next_value, hyperparams.gamma, hyperparams.gae_lambda)
    networks, behaviour = {"actor": actor, "critic": critic}, actor.arrays
    norms: list[float] = []
    sizes: dict[str, list[float]] = {name: [] for name in networks}
    flat = (_by_step(each) for each in (*samples, advantage, advantage + value))
    *of_samples, advantage, target = flat
    for steps in itertools.chain(*minibatches):
        batch = _minibatch(Samples(*of_samples), steps, behaviour, advantage, target)
        mean, std = batch.advantage.mean(), batch.advantage.std()
        batch = batch._replace(advantage=(batch.advantage - mean) / (std + 1e-8))
        gradients = {
            "actor": actor_gradients(networks["actor"].arrays, batch, hyperparams, 1.0)[0],
            "critic": critic_gradients(networks["critic"].arrays, batch, hyperparams.vf_coeff)[0],
        }
        norms.append(norm_of([each for own in gradients.values() for each in own]))
        factor = min(1.0, hyperparams.actor_optimizer_params.grad_clip / norms[-1])
        for name, own in gradients.items():
            params = getattr(hyperparams, f"{name}_optimizer_params").replace(grad_clip=np.inf)
            networks[name], _, size = networks[name].step(
                [factor * each for each in own], params, largest_size=np.inf
            )
            sizes[name].append(size)
    return {name: Fit(networks[name], {}, norms, sizes[name]) for name in networks}


def _by_step(leaf: np.ndarray | None) -> Any:
    """Turn ``[time, envs, ...]`` into ``[1, time * envs, ...]``."""
    return None if leaf is None else leaf.reshape(1, -1, *leaf.shape[2:])


def _minibatch(
    samples: Samples,
    envs: np.ndarray,
    behaviour: Arrays,
    advantage: np.ndarray,
    value_target: np.ndarray,
) -> Minibatch:
    """Take the active samples of some environments."""
    active = samples.active[:, envs]

    def take(leaf: np.ndarray) -> np.ndarray:
        return leaf[:, envs][active]

    features, action = take(samples.features), take(samples.action)
    mask = None if samples.mask is None else take(samples.mask)
    return Minibatch(
        features=features,
        mask=mask,
        action=action,
        old_log_prob=policy_of(behaviour, features, action, mask)[0].log_prob,
        advantage=take(advantage),
        value_target=take(value_target),
    )


def _fit(
    network: Optimizer,
    epochs: list[list[Minibatch]],
    params: Any,
    differentiate: Callable[[Arrays, Minibatch], Derivative],
) -> Fit:
    metrics, norms, sizes = {}, [], []
    for minibatches in epochs:
        stats, weights = [], []
        for batch in minibatches:
            gradients, of_batch = differentiate(network.arrays, batch)
            network, norm, size = network.step(gradients, params)
            norms.append(norm)
            sizes.append(size)
            stats.append({**of_batch, "gradient_norm": norm})
            weights.append(len(batch.action))
        metrics = {
            key: float(np.average([each[key] for each in stats], weights=weights))
            for key in stats[0]
        }
    return Fit(network, metrics, norms, sizes)


def _normalised(
    critic: Optimizer, target: np.ndarray, active: np.ndarray, statistics: ValueStatistics
) -> tuple[Optimizer, np.ndarray, ValueStatistics]:
    """Normalise targets by statistics that include them; denormalised values stay as they are."""
    updated = statistics.updated(target[active])
    *arrays, kernel, bias = critic.arrays
    ratio = statistics.std / updated.std
    shift = (statistics.mean - updated.mean) / updated.std
    critic = critic._replace(arrays=[*arrays, ratio * kernel, ratio * bias + shift])
    return critic, (target - updated.mean) / updated.std, updated
