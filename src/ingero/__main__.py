"""The `ingero` command: prints its list of commands, or loads and runs one of them.

The list is printed without importing anything large.
"""

import sys

from ingero.cli.command_list import COMMANDS, GROUPS


def help_text() -> str:
    """Return the list of all commands, grouped by task."""
    lines = [
        "Usage: ingero COMMAND [OPTIONS]",
        "",
        "Which node, which rank, which collective, why, what it costs, what to do next.",
        "",
    ]
    for group in GROUPS:
        rows = [command for command in COMMANDS if command[1] == group]
        if rows:
            lines.append(group)
            lines += [f"  {name:<15} {summary}" for name, _, summary, _ in rows]
            lines.append("")
    lines.append("`ingero COMMAND --help` shows options and examples. Start with `ingero demo`.")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = sys.argv[1:] if argv is None else argv
    try:
        return _main(args)
    except KeyboardInterrupt:  # while a command is being loaded
        return 130
    except OSError as error:
        from ingero.cli.dispatch import output_lost

        return output_lost(error, "ingero", answered=0, failed=1)


def _opens_top() -> bool:
    """Whether `ingero` alone is a view of Fleet: on a terminal, where a Fleet is configured."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    from ingero.config.contexts import find_context
    from ingero.errors import ConfigError

    try:
        return find_context().is_configured
    except ConfigError:  # the help says how to go on, every other command what is wrong
        return False


def _main(args: list[str]) -> int:
    if not args and _opens_top():
        args = ["top"]
    if not args or args[0] in ("-h", "--help", "help"):
        print(help_text(), flush=True)
        return 0
    if args[0] in ("--version", "version"):
        from ingero.cli.version import version_text

        print(version_text(), flush=True)
        return 0
    try:
        from ingero.cli.dispatch import run

        return run(args)
    except KeyboardInterrupt:  # before the command handles it
        return 130


if __name__ == "__main__":
    sys.exit(main())
