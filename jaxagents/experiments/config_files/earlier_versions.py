"""Records of runs that earlier versions wrote."""

from jaxagents.experiments.config_files.yaml_source import Source

# Keys added since 1.0, with the values that describe runs from before they were added.
_ADDED_KEYS = {
    "agent.time_limits": "bootstrap",
    "agent.observe_time": "false",
}


def meaning_of_missing_keys(source: Source) -> dict[str, str]:
    """Return values for the keys that a run's record lacks; none for files that users write."""
    if not source.is_record:
        return {}
    return {key: value for key, value in _ADDED_KEYS.items() if key not in source.entries}
