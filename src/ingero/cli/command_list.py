"""The commands of `ingero`: name, group, one line, click command. Plain tuples, since `--help` must cost nothing."""

GROUPS = (
    "Try it",
    "Find the slow one",
    "On a GPU node",
    "Across nodes and files",
    "Operate",
)

COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    (
        "demo",
        "Try it",
        "a slow node being found, on this machine",
        "ingero.cli.commands.demo:command",
    ),
    (
        "status",
        "Find the slow one",
        "who is slow now, by cluster",
        "ingero.cli.commands.status:command",
    ),
    (
        "blame",
        "Find the slow one",
        "the rank a recorded job waits for, and why",
        "ingero.cli.commands.blame:blame",
    ),
    (
        "whatif",
        "Find the slow one",
        "what each fix would save: time, GPU hours, money",
        "ingero.cli.commands.blame:whatif",
    ),
    (
        "explain",
        "Find the slow one",
        "what was slow, why, and what to do about it",
        "ingero.cli.commands.explain:command",
    ),
    (
        "query",
        "Find the slow one",
        "ask a trace database with SQL or filters",
        "ingero.cli.commands.query:command",
    ),
    (
        "import",
        "Find the slow one",
        "recorded collectives into a database, Fleet or Echo",
        "ingero.cli.commands.import_traces:command",
    ),
    (
        "replay",
        "Find the slow one",
        "what Fleet decided, decided again, with the reasons",
        "ingero.cli.commands.replay:command",
    ),
    (
        "check",
        "On a GPU node",
        "is this node ready, and what does each missing piece cost",
        "ingero.cli.commands.node.check:command",
    ),
    (
        "trace",
        "On a GPU node",
        "watch CUDA, NCCL and the kernel, live and recorded",
        "ingero.cli.commands.node.trace:command",
    ),
    (
        "run",
        "On a GPU node",
        "start a job so that every collective is timed on the GPU",
        "ingero.cli.commands.node.run:command",
    ),
    (
        "annotate",
        "On a GPU node",
        "mark a step, epoch or phase in the running recording",
        "ingero.cli.commands.node.annotate:command",
    ),
    (
        "fleet-push",
        "On a GPU node",
        "push this node's health to Fleet, name it when it is slow",
        "ingero.cli.commands.node.fleet_push:command",
    ),
    (
        "dashboard",
        "On a GPU node",
        "this node's page and API",
        "ingero.cli.commands.node.dashboard:command",
    ),
    (
        "mcp",
        "On a GPU node",
        "this node's tools for an AI assistant",
        "ingero.cli.commands.node.mcp:command",
    ),
    (
        "ask",
        "On a GPU node",
        "ask one of those tools from the shell",
        "ingero.cli.commands.node.mcp:ask",
    ),
    (
        "nodes",
        "Across nodes and files",
        "list, trust and check the nodes a fan-out asks",
        "ingero.cli.commands.nodes:command",
    ),
    (
        "merge",
        "Across nodes and files",
        "trace databases of several nodes into one file",
        "ingero.cli.commands.merge:command",
    ),
    (
        "export",
        "Across nodes and files",
        "a timeline for Perfetto: JSON or native packets",
        "ingero.cli.commands.export:command",
    ),
    (
        "up",
        "Operate",
        "Fleet and Echo on this machine, watched over",
        "ingero.cli.commands.services.up:command",
    ),
    (
        "silence",
        "Operate",
        "no alerts about a node or a job for a while",
        "ingero.cli.commands.silence:command",
    ),
    (
        "rates",
        "Operate",
        "what a GPU hour costs: show, check, update",
        "ingero.cli.commands.rates:command",
    ),
)
