#!/usr/bin/env bash
# Trains simple_spread by two processes of this machine: sh examples/two_processes.sh [OPTIONS]
set -eu
cd "$(dirname "$0")/.."
options="--coordinator 127.0.0.1:29500 --num-processes 2"
# shellcheck disable=SC2086
jaxagents train configs/simple_spread.yaml $options --process-id 1 "$@" &
# shellcheck disable=SC2086
jaxagents train configs/simple_spread.yaml $options --process-id 0 "$@"
wait
