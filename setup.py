"""The optional compiled extensions.

Each has a pure-Python twin, so a build that fails only costs speed.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
PARTS = [str(part) for part in SOURCE.rglob("_native/*.px[id]")]


def extension(module: str) -> Extension:
    """Build `module` from its .pyx file, again when any included or shared part has changed."""
    path = SOURCE / f"{module.replace('.', '/')}.pyx"
    return Extension(
        module,
        [str(path)],
        depends=PARTS,
        include_dirs=[str(SOURCE)],  # where Cython looks for `ingero`, which is a namespace package
        optional=True,
        extra_compile_args=["-g0"],
        extra_link_args=["-Wl,-s"],  # symbols would double what is installed
    )


EXTENSIONS = ["ingero.contract._native.codecs", "ingero.fleet._native.fast_path"]
IS_PURE = os.environ.get("INGERO_BUILD") == "pure"  # a wheel for every platform
setup(ext_modules=[] if IS_PURE else [extension(module) for module in EXTENSIONS])
