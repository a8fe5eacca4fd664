"""Putting a mutant into this process, in which the module may have been imported already."""

import gc
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutation.mutants import Mutant
from tests.mutation.rooms import ROOT, SOURCE

Functions = dict[str, list[FunctionType]]


def functions_by_file() -> Functions:
    """Return every function that exists in this process, by the file it is written in."""
    found: Functions = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found.setdefault(each.__code__.co_filename, []).append(each)
    return found


def exchange_functions(mutant: Mutant, functions: Functions) -> bool:
    """Give the functions of the module their changed code; return whether that was possible.

    It is impossible for what runs only while a module is imported: constants, defaults, classes.
    """
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(_compiled(mutant))}
    is_changed = False
    for function in functions.get(str(SOURCE / mutant.file), []):
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if new is not None and len(new.co_freevars) != len(old.co_freevars):
            return False
        if new is not None and new != old:
            function.__code__, is_changed = new, True
    return is_changed


def import_again(mutant: Mutant) -> None:
    """Forget all modules of the repository; the changed one is used when they are imported."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        is_ours = name.partition(".")[0] in ("ingero", "tests") or _is_test(file)
        if is_ours and not name.startswith("tests.mutation"):
            del sys.modules[name]
    name = mutant.file.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, _Finder(name, _compiled(mutant)))


def _is_test(file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(ROOT / "tests")


def _compiled(mutant: Mutant) -> CodeType:
    return compile(mutant.tree(), str(SOURCE / mutant.file), "exec")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _Finder(MetaPathFinder, Loader):
    """Finds one module, with changed code."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name, self._code = name, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return spec_from_loader(fullname, self, origin=self._code.co_filename)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._code.co_filename
        exec(self._code, module.__dict__)
