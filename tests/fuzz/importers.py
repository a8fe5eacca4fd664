"""Files of other tools, recognised by their content: records and an answer, or a clear error."""

from tests.support.fuzzing import file_with

from ingero.errors import IngeroError
from ingero.importers.ask import blame_inputs
from ingero.importers.detect import MAX_MESSAGE, Inputs, ReadLimits, load

LIMITS = ReadLimits(file_bytes=1 << 20, unpacked_bytes=1 << 20)
NAMES = ("rank_0", "_dump_1", "node-h1-pid7.log", "rank3.json", "job.yaml", "trace.gz")


def fuzz(data: bytes) -> None:
    """The first byte chooses the name of the file, from which some formats take the rank."""
    if not data:
        return
    path = file_with(data[1:], NAMES[data[0] % len(NAMES)])
    try:
        found = load([path], LIMITS)
    except IngeroError as error:
        assert len(str(error)) < 4 * MAX_MESSAGE
        return
    finally:
        path.unlink()
    _ask(found)


def _ask(found: Inputs) -> None:
    try:
        blame_inputs(found)
    except IngeroError:
        return
