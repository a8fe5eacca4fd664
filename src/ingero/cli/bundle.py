"""What `ingero support-bundle` collects: texts by name, without secrets.

Everything that fails is part of the answer: its text is the reason.
"""

import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import yaml

from ingero.agent.checks import run_checks
from ingero.agent.host.sockets import find_health_socket
from ingero.agent.service.health import SOCKET_NAME, ask_agent
from ingero.children.output import output_of
from ingero.cli.fleet_options import fleet_client
from ingero.compiled import describe_parts
from ingero.config.ingero import find_config
from ingero.contract.api_paths import FLEET_EPISODES, FLEET_STATUS, HEALTHZ, PROMETHEUS
from ingero.errors import IngeroError
from ingero.files import open_regular, read_regular
from ingero.storage.caller import home

MAX_TEXT_BYTES: Final = 4 << 20
MAX_LOG_BYTES: Final = 1 << 20
MAX_EPISODES: Final = 20
COMMAND_S: Final = 10.0
REMOVED: Final = "[removed]"
UNITS: Final = ("ingero-agent", "ingero-fleet", "ingero-echo")
# settings and variables that hold a secret themselves, also those that somebody misspelled or
# that belong to other programs; those that name a file of secrets end in `_file`
_NAMES: Final = (
    r"(?:token|secret|passw|passphrase|credential|authorization|bearer|cookie|webhook_?url|"
    r"connection_?string|(?:api|access|account|encryption|hmac|license|master|private|routing|"
    r"shared|signing|ssh)[-_ ]?key|(?<![a-z])(?:auth|dsn|jwt|otp|pass|pwd|sas|signature)(?![a-z]))"
)
_SECRET: Final = re.compile(rf"^(?!.*_file\Z).*{_NAMES}", re.I | re.S)
_SECRET_FILE: Final = re.compile(r"(token|secrets?|password|routing_key|urls)_file\Z", re.I)
_NO_SECRETS: Final = ("key_name", "allowed_clusters", "clusters", "scopes")  # of a list of tokens
_PATH: Final = re.compile(r"^\w+://[^/?]+[/?]?")  # what comes before the path of an address
# What follows is searched in logs, which others write to: no pattern begins with a repetition, and
# every repetition has a bound, so that the time is proportional to the text.
_CREDENTIALS: Final = re.compile(r"//[^\s\"'<>]{1,512}@")
_ASSIGNED: Final = re.compile(
    rf"({_NAMES}(?![\w-]{{0,40}}_file)[\w-]{{0,40}}[\\\"']{{0,2}}\s?[=:]\s?"
    r"[\\\"']{0,2}(?:(?:bearer|basic)\s)?)"
    r"[^\s\\\"',;&{}\[\]]{8,4096}",
    re.I,
)
_JWT: Final = re.compile(r"\beyJ[\w-]{8,4096}\.[\w-]{2,4096}\.[\w-]{0,4096}")
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----)[^-]{1,16384}")
_CODE: Final = re.compile(r"ij1_[A-Za-z0-9_-]{64}")


def collect(fleet_config: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file of a bundle."""
    secrets = known_secrets(fleet_config)
    parts: dict[str, Callable[[], str]] = {
        "versions.txt": versions,
        "checks.json": _checks,
        "ingero.yaml": lambda: _configuration(find_config()),
        "fleet-config.yaml": lambda: _configuration(fleet_config),
        "agent-health.json": lambda: _agent(HEALTHZ),
        "agent-metrics.txt": lambda: _agent(PROMETHEUS),
        "fleet-status.json": lambda: _fleet(FLEET_STATUS),
        "fleet-episodes.json": _episodes,
        **{f"logs/{unit}.log": lambda unit=unit: _journal(unit) for unit in UNITS},  # type: ignore[misc]  # a default argument binds the loop's value
        **{f"logs/up-{path.name}": lambda path=path: _tail(path) for path in _up_logs()},  # type: ignore[misc]  # as above
    }
    for name, part in parts.items():
        try:
            text = part()
        except yaml.YAMLError as error:  # its text quotes the line, which may hold a secret
            place = getattr(error, "problem_mark", None)
            text = f"not available: no valid YAML{f', line {place.line + 1}' if place else ''}\n"
        except (IngeroError, OSError, ValueError) as error:
            text = f"not available: {error}\n"
        yield name, clean(text[:MAX_TEXT_BYTES], secrets)


def known_secrets(fleet_config: Path | None = None) -> list[str]:
    """Return the secrets in this machine's configuration, which must not appear in a bundle."""
    found = [value for name, value in os.environ.items() if _SECRET.search(name) and name != "PWD"]
    for path in (find_config(), fleet_config):
        try:
            document = yaml.safe_load(read_regular(path, MAX_TEXT_BYTES)) if path else None
        except (IngeroError, OSError, ValueError, yaml.YAMLError):
            continue
        for name, value in _settings(document):
            if _SECRET_FILE.search(name):
                found += _secrets_of(Path(value))
            elif _is_secret(name):
                found.append(value)
            elif name == "url" and _PATH.search(value):  # that of a webhook is its secret
                found.append(_PATH.sub("", value, count=1))
    return sorted({value for value in found if len(value) >= 8}, key=len, reverse=True)


def _settings(document: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of every setting; all parts of a secret setting have its name."""
    if isinstance(document, list):
        for each in document:
            yield from _settings(each, name)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _settings(value, name if _is_secret(name) else str(key))
    elif document is not None:
        yield name, str(document)


def _is_secret(name: str) -> bool:
    return name == "headers" or _SECRET.search(name) is not None


def _secrets_of(path: Path) -> list[str]:
    """Return the secrets in a file.

    These are its lines and parts of them, or all values of a list or mapping.
    """
    try:
        text = read_regular(path, 1 << 20).decode()
        listed = yaml.safe_load(text)
    except (IngeroError, OSError, ValueError):
        return []
    except yaml.YAMLError:
        listed = None
    if isinstance(listed, list | dict):
        return [value for name, value in _settings(listed) if name not in _NO_SECRETS]
    lines = [line.strip() for line in text.splitlines()]
    return [part for line in lines for part in (line, *re.split("[/?&=\\s\"']+", line))]


def clean(text: str, secrets: list[str]) -> str:
    """Return a text without secrets, join codes and credentials in addresses."""
    for secret in secrets:
        for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
            text = text.replace(form, REMOVED)
    text = _CREDENTIALS.sub(f"//{REMOVED}@", text)
    text = _PRIVATE_KEY.sub(rf"\1{REMOVED}", _ASSIGNED.sub(rf"\1{REMOVED}", text))
    return _CODE.sub(REMOVED, _JWT.sub(REMOVED, text))


def redacted(document: Any) -> Any:
    """Return a configuration without the values of secret settings and of headers."""
    if isinstance(document, dict):
        return {
            name: REMOVED if _is_secret(str(name)) else redacted(value)
            for name, value in document.items()
        }
    return [redacted(each) for each in document] if isinstance(document, list) else document


def versions() -> str:
    """Return the versions of everything that matters."""
    names = sorted({each.name for each in importlib.metadata.distributions() if each.name})
    packages = "".join(f"  {name} {importlib.metadata.version(name)}\n" for name in names)
    return (
        f"ingero {importlib.metadata.version('ingero')}\n{describe_parts()}\n"
        f"Python {sys.version}\n{platform.platform()}\npackages:\n{packages}"
    )


def _checks() -> str:
    return json.dumps([msgspec.to_builtins(check) for check in run_checks()], indent=1) + "\n"


def _configuration(path: Path | None) -> str:
    if path is None:
        return "there is none\n"
    document = yaml.safe_load(read_regular(path, MAX_TEXT_BYTES))
    return f"# {path}\n{yaml.safe_dump(redacted(document), sort_keys=False)}"


def _agent(question: str) -> str:
    return ask_agent(find_health_socket(SOCKET_NAME), question)[1].decode()


def _fleet(path: str) -> str:
    client = fleet_client(None, None)
    return client.download(path, MAX_TEXT_BYTES).decode() + "\n"


def _episodes() -> str:
    listed = json.loads(_fleet(FLEET_EPISODES))
    episodes = listed["episodes"] if isinstance(listed, dict) else listed
    return json.dumps(episodes[:MAX_EPISODES], indent=1) + "\n"


def _journal(unit: str) -> str:
    command = ["journalctl", "--no-pager", "--output=short-iso", "--lines=2000", f"--unit={unit}"]
    return output_of(command, MAX_LOG_BYTES, COMMAND_S)


def _up_logs() -> list[Path]:
    return sorted((home() / ".ingero" / "up").glob("*.log"))


def _tail(path: Path) -> str:
    # not through a link: under sudo, that would be a file of somebody else
    descriptor, status = open_regular(str(path))
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(status.st_size - MAX_LOG_BYTES, 0))
        return file.read(MAX_LOG_BYTES).decode(errors="replace")
