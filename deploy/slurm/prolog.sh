#!/bin/sh
# Prolog=/etc/slurm/ingero/prolog.sh with PrologFlags=Alloc: a gate before a job starts on this node.
# The node is refused (and drained by Slurm) only when its own agent says that a part which should run does not. A node
# without an agent passes, and so does one whose agent does not answer: the gate never stops work because of itself.
#   INGERO_PROLOG=off  turns the gate off
[ "$INGERO_PROLOG" = off ] && exit 0
answer=$(timeout 5 ingero agent --health --json 2>/dev/null)
case $answer in
  *'"healthy": false'*) echo "ingero: the agent on $(hostname) reports a part that does not run: ingero agent --health" >&2; exit 1 ;;
esac
exit 0
