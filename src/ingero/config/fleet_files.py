"""Certificates and tokens that a Fleet configuration names: which are missing, how to make them."""

from pathlib import Path
from shlex import quote

from ingero.config.fleet import FleetConfig
from ingero.errors import ConfigError

PLAIN_EXAMPLE = "configs/fleet-config-plain.yaml"
_CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 "
    '-subj /CN=fleet -addext "subjectAltName=DNS:$(hostname)" '
    "-addext basicConstraints=critical,CA:FALSE"
)


def require_files(config: FleetConfig) -> None:
    """Raise ConfigError with every missing file of a listener and the commands that make them."""
    missing = _missing(config)
    if not missing:
        return
    commands = ["umask 077"]
    folders = dict.fromkeys(quote(str(path.parent)) for path in missing)
    commands += [f"mkdir -p {folder}" for folder in folders if folder != "."]
    for listener in config.listeners():
        tls = listener.tls
        if tls is not None and {tls.cert_file, tls.key_file} & set(missing):
            target = f"-keyout {quote(str(tls.key_file))} -out {quote(str(tls.cert_file))}"
            commands.append(f"{_CERTIFICATE} {target}")
        if listener.token_file in missing:
            commands.append(f"openssl rand -hex 32 > {quote(str(listener.token_file))}")
    raise ConfigError(
        f"the configuration names files that do not exist: {', '.join(map(str, missing))}.\n"
        "`ingero fleet init DIR` makes an authority, certificates, tokens and a configuration that "
        "nodes can join. Or make a certificate for this machine and a token by hand; "
        "clients need copies of both, as fleet.tls.ca and fleet.token_file:\n"
        + "".join(f"  {command}\n" for command in dict.fromkeys(commands))
        + f"For a first try without certificates and tokens, use {PLAIN_EXAMPLE}."
    )


def _missing(config: FleetConfig) -> list[Path]:
    named: list[Path | None] = []
    for listener in config.listeners():
        if listener.tls is not None:
            named += [listener.tls.cert_file, listener.tls.key_file]
        named.append(listener.token_file)
    return [path for path in dict.fromkeys(named) if path is not None and not path.exists()]
