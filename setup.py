"""The one optional compiled extension; everything has a pure-Python path, so a failed compile only costs speed."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("ingero.contract._native", ["src/ingero/contract/_native.pyx"], optional=True)])
