"""Choose actions with an exported policy, using numpy alone; needs policy_reader.py beside it.

jaxagents export RUN
python examples/serve.py RUN/export < observations.jsonl

Each line of the input is a JSON list of all actors' observations; each line of the output is a list
of their actions, or {"error": ...} for a line that cannot be used. The lines belong to one episode,
because recurrent policies remember and others may observe the time; the line null begins another
episode, and prints nothing.
"""

import json
import sys

import numpy as np
from policy_reader import Reader


def append(features, values):
    """Append values ``[actors, n]`` to the last axis of features ``[actors, *obs]``."""
    features = features[:, None] if features.ndim == 1 else features
    values = values.reshape(len(values), *[1] * (features.ndim - 2), -1)
    values = np.broadcast_to(values, (*features.shape[:-1], values.shape[-1]))
    return np.concatenate([features, values.astype(np.float32)], axis=-1)


class Policy(Reader):
    """A reader that checks observations, completes them, and keeps the memories."""

    def __init__(self, directory):
        super().__init__(directory)
        self.reset()

    def reset(self, actors=None):
        """Reset the memories at an episode's start: of all actors, or of a list of indices.

        An actor that comes back within an episode starts anew, too.
        """
        empty = self.empty_memory()
        if actors is None:
            self.memory = empty
        for actor in [] if actors is None else actors:
            self.memory[actor] = empty[actor]

    def act(self, observation, action_mask=None, elapsed=None):
        """Choose an action for each actor; a recurrent policy remembers the observation.

        Args:
            observation: ``[actors, *obs]``, without the one-hot index of `agent_id` and the time,
                in the order of ``actors`` in policy.json. Vectors are padded, and dictionaries
                flattened, as it says.
            action_mask: True for available actions, ``[actors, n_actions]``; of multidiscrete
                actions, those of all choices in a row.
            elapsed: Steps since the reset, for policies that observe the time.

        Raises:
            ValueError: an argument is missing, or has a wrong shape, NaN or infinity.
        """
        features = self._as_array(observation)
        self._check_shape(features.shape)
        self._check_mask(action_mask)
        if self.description["observation"]["agent_id"]:
            features = append(features, np.eye(len(features)))
        time_limit = self.description["observation"]["time_limit"]
        if time_limit is not None:
            if elapsed is None:
                raise ValueError(
                    "the policy observes the time; give elapsed, the steps since the reset"
                )
            if not (np.isfinite(elapsed) and elapsed >= 0):
                raise ValueError(f"elapsed is {elapsed}; give the steps since the reset")
            share = min(elapsed / time_limit, 1.0)
            features = append(features, np.full((len(features), 1), share))
        mask = True if action_mask is None else np.asarray(action_mask)
        action, self.memory = self.step(features, self.memory, mask)
        return action

    def _check_shape(self, shape):
        own = self.description["observation"].get("environment_shape")  # not in files of 1.0
        if own is None:
            return
        expected = [len(self.description["policy_of_actor"]), *own]
        if list(shape) != expected:
            raise ValueError(
                f"the observation has shape {list(shape)}; the policy takes {expected}: the actors "
                "and what the environment shows to one, without agent_id and time, appended here"
            )

    def _check_mask(self, action_mask):
        action = self.description["action"]
        if action_mask is None or action["kind"] == "box":
            return
        choices = [action["n"]] if action["kind"] == "discrete" else action["n_choices"]
        mask = np.asarray(action_mask, bool)
        expected = (len(self.description["policy_of_actor"]), sum(choices))
        if mask.shape != expected:
            raise ValueError(f"the mask has shape {list(mask.shape)}, not {list(expected)}")
        parts = np.split(mask, np.cumsum(choices)[:-1], axis=-1)
        if not all(part.any(axis=-1).all() for part in parts):
            raise ValueError("the mask leaves an actor without any action")

    def _as_array(self, observation):
        """Flatten dictionaries, pad vectors, and refuse values that are not finite."""
        actors = self.description.get("actors")
        if actors is not None and len(observation) == len(actors):
            observation = [self._own(*each) for each in zip(actors, observation, strict=True)]
        try:
            features = np.asarray(observation, np.float32)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"the observation is no array of numbers: {error}") from error
        if not np.isfinite(features).all():
            raise ValueError("the observation has NaN or infinity, or exceeds float32")
        return features

    def _own(self, actor, observation):
        """Return one actor's observation as the network takes it."""
        if isinstance(observation, dict):
            parts = actor["parts"]
            if parts is None or set(observation) != {name for name, _ in parts}:
                raise ValueError(f"an observation has the keys {sorted(observation)}, not {parts}")
            flat = [np.ravel(observation[name]) for name, _ in parts]
            sizes = [[name, len(each)] for (name, _), each in zip(parts, flat, strict=True)]
            if sizes != parts:
                raise ValueError(f"an observation has parts {sizes}, not {parts}")
            observation = np.concatenate(flat)
        wanted = self.description["observation"]["environment_shape"]
        if len(wanted) == 1 and actor["shape"] == list(np.shape(observation)) != wanted:
            return np.pad(observation, (0, wanted[0] - len(observation)))
        return observation


def serve(policy, lines):
    """Print the actions, or what is wrong, for each line of observations."""
    elapsed = 0
    for line in lines:
        try:
            observation = json.loads(line)
            if observation is None:
                policy.reset()
                elapsed = 0
                continue
            answer = policy.act(observation, elapsed=elapsed).tolist()
            elapsed += 1
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ) as error:  # the next line may be right
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        serve(Policy(sys.argv[1]), sys.stdin)
    except (IndexError, OSError, ValueError) as error:
        sys.exit(f"serve.py DIRECTORY: {error}")
