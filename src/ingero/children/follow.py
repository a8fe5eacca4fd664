"""Runs a module that ends when the process that started it ends, also when that one is killed.

`python -m ingero.children.follow PARENT MODULE ARGUMENT...`; the first argument is the process id
of the parent.
"""

import os
import runpy
import sys

from ingero.children.lifetime import end_with_parent


def main() -> None:
    """Run the module of the command line as `python -m` would."""
    parent, module, *arguments = sys.argv[1:]
    end_with_parent()
    if os.getppid() != int(parent):
        sys.exit("the process that started this one has ended")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
