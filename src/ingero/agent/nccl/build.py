"""Builds the NCCL plugin: `make probes`."""

from pathlib import Path

from ingero.agent.host.shared_library import SharedLibrary

FOLDER = Path(__file__).parent
LIBRARY = "libnccl-profiler-ingero.so"
SOURCES = ("chain.c", "operations.c", "profiler.c", "ring.c")
HEADERS = ("interface.h", "plugin.h", "ring.h")
PLUGIN = SharedLibrary(FOLDER, LIBRARY, SOURCES, HEADERS)

if __name__ == "__main__":
    PLUGIN.build_all()
