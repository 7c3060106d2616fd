"""``config.yaml`` files of runs of earlier versions."""

from jaxagents.experiments.config_files.yaml_source import Source

# Keys added since 1.0, with the values that describe runs from before they were added.
_ADDED_KEYS = {
    "agent.time_limits": "bootstrap",
    "agent.observe_time": "false",
}


def meaning_of_missing_keys(source: Source) -> dict[str, str]:
    """Return the values of keys that an older run's ``config.yaml`` lacks.

    Empty for a user's own file.
    """
    if not source.is_record:
        return {}
    return {key: value for key, value in _ADDED_KEYS.items() if key not in source.entries}
