"""Builds the stand-in for the CUDA runtime: `make probes`."""

from pathlib import Path

from ingero.agent.host.shared_library import SharedLibrary

STAND_IN = SharedLibrary(Path(__file__).parent, "libcudart.so", ("standin.c",))

if __name__ == "__main__":
    STAND_IN.build_all()
