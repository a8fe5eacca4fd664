"""The one optional compiled extension; everything has a pure-Python path, so a failed compile only costs speed."""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = "src/ingero/contract/_native.pyx"
PARTS = [str(part) for part in Path("src/ingero/contract/native").glob("*.pxi")]
setup(ext_modules=[Extension("ingero.contract._native", [SOURCE], depends=PARTS, optional=True)])
