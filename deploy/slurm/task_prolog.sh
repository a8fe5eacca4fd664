#!/bin/sh
# TaskProlog=/etc/slurm/ingero/task_prolog.sh
# Slurm runs it before every task, and adds what it prints as `export NAME=value` to the task's environment. It lets NCCL
# load the plugin that times collectives; a task without NCCL ignores the variable. A job that names a plugin of its own
# keeps it. Whatever goes wrong here, the task starts without the plugin.
plugin=${INGERO_NCCL_PLUGIN:-$(ingero run --print-env 2>/dev/null | sed -n 's/^export NCCL_PROFILER_PLUGIN=//p')}
if [ -z "$NCCL_PROFILER_PLUGIN" ] && [ -r "$plugin" ]; then
  echo "export NCCL_PROFILER_PLUGIN=$plugin"
fi
exit 0
