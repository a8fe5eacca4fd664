"""`python -m tests.surface` records the public surface as the code has it now."""

import sys

from tests.surface.parts import surface
from tests.surface.snapshot import difference, recorded, update

now = surface()
print(difference(recorded(), now) or "nothing changed")
if refused := update(now):
    sys.exit(refused)
