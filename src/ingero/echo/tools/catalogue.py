"""All tools, in the order of an investigation."""

from typing import Final

from ingero.echo.tools.analysis import run_analysis
from ingero.echo.tools.asker import PREFIX, Asker
from ingero.echo.tools.cost import get_cost
from ingero.echo.tools.counters import (
    kernel_launch_summary,
    memcpy_bandwidth_summary,
    memfrag_hotspots,
)
from ingero.echo.tools.history import anomalies, event_history
from ingero.echo.tools.nccl import nccl_summary
from ingero.echo.tools.outliers import find_outlier_nodes
from ingero.echo.tools.stragglers import find_stragglers
from ingero.echo.tools.summary import summary
from ingero.transport.tools.tool import Tool, tool

_QUESTIONS: Final = (
    summary,
    find_stragglers,
    find_outlier_nodes,
    nccl_summary,
    get_cost,
    anomalies,
    event_history,
    memcpy_bandwidth_summary,
    memfrag_hotspots,
    kernel_launch_summary,
    run_analysis,
)
TOOLS: Final[tuple[Tool[Asker], ...]] = tuple(
    tool(PREFIX + asked.__name__, asked) for asked in _QUESTIONS
)
