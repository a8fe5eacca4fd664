"""Link a run in Weights & Biases or TensorBoard to the page of its job in Fleet.

    page = link_run("https://fleet.example.com:8080", wandb.init())     # Weights & Biases
    page = link_run("https://fleet.example.com:8080", SummaryWriter())  # TensorBoard

Call it once, on rank 0. Run it with `python examples/link_run.py` to see what it does.
"""

import os
from typing import Any
from urllib.parse import quote

# Where agents find the id of a job, too; torchrun without an id sets "none"
JOB_VARIABLES = ("INGERO_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


def link_run(fleet_url: str, run: Any) -> str | None:
    """Write the address of the job's page into a run; return None where no job id is known."""
    found = (os.environ.get(name) for name in JOB_VARIABLES)
    job = next((each for each in found if each not in (None, "", "none")), None)
    if job is None:
        return None
    page = f"{fleet_url.rstrip('/')}/job/{quote(job, safe='')}"
    if hasattr(run, "add_text"):  # a SummaryWriter of TensorBoard
        run.add_text("ingero", f"[who is slow in this job]({page})")
    else:  # a run of Weights & Biases
        run.summary["ingero"] = page
    return page


class _PrintingWriter:
    def add_text(self, tag: str, text: str) -> None:
        print(f"{tag}: {text}")


if __name__ == "__main__":
    os.environ["INGERO_JOB_ID"] = "llm-7b"
    link_run("https://fleet.example.com:8080", _PrintingWriter())
