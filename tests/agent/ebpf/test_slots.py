"""Slots are handed out, counted when there are none, and used again."""

import mmap

from ingero.agent.ebpf.layout import SLOT
from ingero.agent.ebpf.loader.maps import KernelMap
from ingero.agent.ebpf.slots import Recording, SlotTable


class Memory(KernelMap):
    """An array map without a kernel."""

    def map_memory(self) -> mmap.mmap:
        return mmap.mmap(-1, self.max_entries * SLOT.itemsize)


def test_slots_run_out_visibly_and_come_back() -> None:
    table = SlotTable(Memory("slots", -1, 2, 4, SLOT.itemsize, 8))
    first = table.take_run(7, [Recording(slow_ns=number) for number in range(5)])
    assert first == 1 and table.rows["tgid"].tolist() == [0, 7, 7, 7, 7, 7, 0, 0], (
        "slot 0 is nobody's"
    )
    assert table.rows["slow_ns"][1:6].tolist() == [0, 1, 2, 3, 4]
    single = table.take(8, Recording())
    assert single in (6, 7) and table.refused == 0
    assert table.take_run(9, [Recording()] * 2) is None and table.refused == 1
    assert table.take(9, Recording()) is not None
    assert table.take(9, Recording()) is None and table.refused == 2
    table.rows[1]["calls"] = 5
    table.give_back([1, 2])
    again = table.take_run(9, [Recording()] * 2)
    assert again == 1 and table.rows[1]["calls"] == 0, "nothing is left of whoever had it before"
    table.close()
