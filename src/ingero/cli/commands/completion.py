"""`ingero completion`: scripts for shells."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print a script that completes commands, options and their values in a shell.

    Packages for Debian and Red Hat install the scripts themselves.

    \b
    Examples:
      source <(ingero completion bash)                                      now
      ingero completion bash > ~/.local/share/bash-completion/completions/ingero
      ingero completion zsh > "${fpath[1]}/_ingero"
      ingero completion fish > ~/.config/fish/completions/ingero.fish
    """
    from ingero.cli.completion import completion_script

    click.echo(completion_script(shell), nl=False)
    return 0
