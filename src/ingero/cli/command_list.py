"""Every command of `ingero`: name, group, one-line summary and click command.

Plain tuples, since `ingero --help` must not import the commands.
"""

TRY, FIND, NODE = "Try it", "Find the slow one", "On a GPU node"
MANY, OPERATE = "Across nodes and files", "Operate"
GROUPS = (TRY, FIND, NODE, MANY, OPERATE)

_COMMANDS = "ingero.cli.commands"
_NODE = f"{_COMMANDS}.node"
_SERVICES = f"{_COMMANDS}.services"

COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("demo", TRY, "find a slow node in a simulated cluster", f"{_COMMANDS}.demo:command"),
    ("load", TRY, "put a steady load on this node's GPU", f"{_NODE}.load:command"),
    ("status", FIND, "show who is slow now, by cluster", f"{_COMMANDS}.status:command"),
    ("top", FIND, "watch who is slow, in a terminal", f"{_COMMANDS}.top:command"),
    ("blame", FIND, "name the rank a recorded job waits for", f"{_COMMANDS}.blame:blame"),
    ("whatif", FIND, "show what each fix would save", f"{_COMMANDS}.blame:whatif"),
    ("explain", FIND, "show what was slow, why, and what to do", f"{_COMMANDS}.explain:command"),
    ("query", FIND, "query trace databases with SQL or filters", f"{_COMMANDS}.query:command"),
    ("import", FIND, "import recorded collectives", f"{_COMMANDS}.import_traces:command"),
    ("replay", FIND, "repeat Fleet's decisions, with reasons", f"{_COMMANDS}.replay:command"),
    ("report", FIND, "write one HTML file about an episode", f"{_COMMANDS}.report:command"),
    ("agent", NODE, "run everything a node needs as a service", f"{_NODE}.agent:command"),
    ("join", NODE, "join a Fleet with one command", f"{_NODE}.join:join"),
    ("leave", NODE, "undo `ingero join`", f"{_NODE}.join:leave"),
    ("check", NODE, "check whether this node can be traced", f"{_NODE}.check:command"),
    ("trace", NODE, "watch CUDA, NCCL and the kernel", f"{_NODE}.trace:command"),
    ("run", NODE, "start a job with timed collectives", f"{_NODE}.run:command"),
    ("annotate", NODE, "mark a step or phase in the recording", f"{_NODE}.annotate:command"),
    ("fleet-push", NODE, "push this node's health to Fleet", f"{_NODE}.fleet_push:command"),
    ("ready", NODE, "say whether an inference engine is ready", f"{_NODE}.ready:command"),
    ("dashboard", NODE, "serve this node's page and API", f"{_NODE}.dashboard:command"),
    ("mcp", NODE, "serve this node's tools to an AI assistant", f"{_NODE}.mcp:command"),
    ("ask", NODE, "ask one of those tools from the shell", f"{_NODE}.mcp:ask"),
    ("nodes", MANY, "list, trust and check other nodes", f"{_COMMANDS}.nodes:command"),
    ("merge", MANY, "merge trace databases into one file", f"{_COMMANDS}.merge:command"),
    ("export", MANY, "write a timeline for Perfetto", f"{_COMMANDS}.export:command"),
    ("up", OPERATE, "run everything on this machine", f"{_SERVICES}.up:command"),
    ("context", OPERATE, "choose the Fleet that commands ask", f"{_COMMANDS}.context:command"),
    ("fleet", OPERATE, "make a Fleet, let nodes join it", f"{_SERVICES}.fleet_admin:command"),
    ("silence", OPERATE, "mute alerts about a node or a job", f"{_COMMANDS}.silence:command"),
    ("alert", OPERATE, "send a test alert to a target", f"{_SERVICES}.alert:command"),
    ("support-bundle", OPERATE, "collect what helpers need", f"{_SERVICES}.support_bundle:command"),
    ("rates", OPERATE, "show, check and update GPU prices", f"{_COMMANDS}.rates:command"),
    ("completion", OPERATE, "print a completion script", f"{_COMMANDS}.completion:command"),
)  # fmt: skip

SCRIPTS = (  # console scripts of their own
    ("ingero-fleet", f"{_SERVICES}.fleet:fleet"),
    ("ingero-echo", f"{_SERVICES}.echo:echo"),
    ("echo-stress", f"{_SERVICES}.echo_stress:stress"),
    ("straggler-sink", f"{_SERVICES}.straggler_sink:command"),
)
