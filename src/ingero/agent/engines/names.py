"""How inference engines are recognised by their command line, and what it says about them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero.contract.measurements.engines import MAX_NAME, EngineKind, printable
from ingero.core.inference.metric_table import TABLES

_PORT_FLAGS: Final = {
    EngineKind.VLLM: ("--port",),
    EngineKind.SGLANG: ("--port",),
    EngineKind.TENSORRT_LLM: ("--port",),
    EngineKind.TRITON: ("--metrics-port",),
    EngineKind.TGI: ("--port", "-p"),
}
_MODEL_FLAGS: Final = {
    EngineKind.VLLM: ("--served-model-name", "--model"),
    EngineKind.SGLANG: ("--served-model-name", "--model-path", "--model"),
    EngineKind.TENSORRT_LLM: ("--served_model_name", "--model"),
    EngineKind.TRITON: (),
    EngineKind.TGI: ("--model-id",),
}
# Titles that engines give their children; vLLM's `VLLM` can be changed by a variable.
_TITLES: Final = (
    (re.compile(r"VLLM::"), EngineKind.VLLM),
    (re.compile(r"\w+::(?:EngineCore|Worker|APIServer|DPCoordinator)"), EngineKind.VLLM),
    (re.compile(r"sglang::"), EngineKind.SGLANG),
)
_KNOWN_PORTS: Final = frozenset(table.port for table in TABLES.values())


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line of a process says; a title has no arguments."""

    kind: EngineKind | None = None
    is_server: bool = False  # it names the server itself, not a child of it
    port: int | None = None
    model: str = ""


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return what a command line says about an engine; nothing for other programs."""
    if not arguments:
        return CommandLine()
    for pattern, kind in _TITLES:
        if pattern.match(arguments[0]):
            return CommandLine(kind)
    kind_of = _server(arguments)
    if kind_of is None:
        return CommandLine(port=_port(arguments, ("--port", "--http-port")))
    return CommandLine(
        kind_of,
        is_server=True,
        port=_port(arguments, _PORT_FLAGS[kind_of]) or TABLES[kind_of].port,
        model=_model(arguments, kind_of),
    )


def may_be_asked(port: int, line: CommandLine) -> bool:
    """Return whether a port may be asked for a metrics page.

    A port of an unknown process may speak another protocol. There, only the port on its command
    line and the default ports of engines are asked.
    """
    return line.is_server or port in (line.port, *_KNOWN_PORTS)


def _server(arguments: Sequence[str]) -> EngineKind | None:
    """Return the kind of server that a command line starts."""
    # an interpreter is followed by a script, or by -m and a module
    words = [_base(word) for word in arguments[:8]]
    if "tritonserver" in words[:2]:
        return EngineKind.TRITON
    if any(word.startswith("text-generation-") for word in words[:2]):
        return EngineKind.TGI
    if "trtllm-serve" in words[:3]:
        return EngineKind.TENSORRT_LLM
    if any(word.startswith("sglang.launch_server") for word in words):
        return EngineKind.SGLANG
    if "sglang" in words[:3] and "serve" in arguments[:8]:
        return EngineKind.SGLANG
    if any(word.startswith("vllm.entrypoints") for word in words):
        return EngineKind.VLLM
    if "vllm" in words[:3] and "serve" in arguments[:8]:
        return EngineKind.VLLM
    return None


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _port(arguments: Sequence[str], flags: Sequence[str]) -> int | None:
    text = _option(arguments, flags)
    is_port = text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
    return int(text) if is_port else None


def _model(arguments: Sequence[str], kind: EngineKind) -> str:
    """Return the name of the model: a flag, or the first argument after `serve`."""
    name = _option(arguments, _MODEL_FLAGS[kind])
    if not name:
        verbs = ("serve",) if kind is not EngineKind.TENSORRT_LLM else ("serve", "trtllm-serve")
        places = [i for i, word in enumerate(arguments) if _base(word) in verbs]
        after = arguments[places[-1] + 1 : places[-1] + 2] if places else ()
        name = next((word for word in after if not word.startswith("-")), "")
    return printable(name, MAX_NAME).strip()


def _option(arguments: Sequence[str], flags: Sequence[str]) -> str:
    """Return the value of the first flag that is given, as `--flag value` or `--flag=value`."""
    for flag in flags:
        for place, word in enumerate(arguments):
            if word == flag and place + 1 < len(arguments):
                return arguments[place + 1]
            if word.startswith(f"{flag}="):
                return word[len(flag) + 1 :]
    return ""
