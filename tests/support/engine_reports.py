"""Reports of inference engines, second by second, for a judge or for pushes."""

from dataclasses import replace

from ingero.contract.measurements.engines import EngineId, EngineKind, EngineReport
from ingero.contract.verdict import Verdict
from ingero.core.inference.judge import EngineJudge

ENGINE = EngineId(kind=EngineKind.VLLM, model="llama", port=8000, pid=100)
BUSY = EngineReport(running=8.0, waiting=0.0, step_s=0.02, step_tokens=8.0, kv_usage=0.3)
IDLE = EngineReport(running=0.0, waiting=0.0, kv_usage=0.0)


def engine(number: int = 0, *, rank: int | None = None, pid: int = 100) -> EngineId:
    return replace(ENGINE, port=8000 + number, pid=pid + number, rank=rank)


class JudgedEngines:
    """A judge with a hand-driven clock; reports stay as they were set until they are changed."""

    def __init__(self) -> None:
        self.judge, self.now_s = EngineJudge(), 1_000.0
        self.reports: dict[tuple[str, EngineId], EngineReport] = {}
        self.price: float | None = None

    def run(self, seconds: int) -> list[Verdict]:
        """Report once per second; return every verdict that was new or changed."""
        changed = []
        for _ in range(seconds):
            self.now_s += 1.0
            for (node, who), report in self.reports.items():
                self.judge.take(node, who, report, self.now_s, self.price)
            changed += self.judge.tick(self.now_s)
        return changed
