"""`ingero demo --no-gpu SCENARIO`: a simulated incident on one machine, analysed like a trace."""

from dataclasses import asdict

from ingero.cli.show.chains import chain_json, print_chain
from ingero.cli.show.table import coloured, print_json, print_summaries, render_table
from ingero.contract.events import op_name
from ingero.core.durations import readable_duration
from ingero.sim.incidents import INCIDENTS, IncidentResult, run_incident
from ingero.storage.trace.chains import RecordedChain


def play(name: str, as_json: bool, seed: int) -> int:
    """Play one incident, or list them; the exit status is 0 when it was found."""
    if name == "list":
        print_summaries(
            ("scenario", "what happens"),
            {name: incident.title for name, incident in INCIDENTS.items()},
            as_json,
        )
        return 0
    result = run_incident(name, seed=seed)
    if as_json:
        print_json(_as_json(result))
    else:
        _show(result)
    return 0 if result.finding.holds else 1


def incident_json(name: str) -> dict[str, object]:
    """Play one incident and return it in the form of `--json`."""
    return _as_json(run_incident(name))


def _as_json(result: IncidentResult) -> dict[str, object]:
    operations = [
        {
            "op": op_name(*s.key),
            "count": s.count,
            "p50_us": s.p50_ns / 1e3,
            "p95_us": s.p95_ns / 1e3,
            "p99_us": s.p99_ns / 1e3,
        }
        for s in result.operations
    ]
    chains = [chain_json(RecordedChain(chain.name, "", 0, chain)) for chain in result.chains]
    return {
        "scenario": result.name,
        "title": result.title,
        "simulated": True,
        "events": result.events,
        "operations": operations,
        "chains": chains,
        "finding": asdict(result.finding),
    }


def _show(result: IncidentResult) -> None:
    print(
        f"{result.title} (simulated: {result.events:,} events in {result.elapsed_s:.1f} s, "
        "analysed by the same statistics as a recording)\n"
    )
    rows = [
        (
            op_name(*s.key),
            s.count,
            *(readable_duration(value) for value in (s.p50_ns, s.p95_ns, s.p99_ns, s.max_ns)),
        )
        for s in result.operations
    ]
    print(render_table(("operation", "count", "p50", "p95", "p99", "max"), rows) + "\n")
    for chain in result.chains:
        print_chain(RecordedChain(chain.name, "", 0, chain))
    mark = coloured("seen", "32") if result.finding.holds else coloured("not seen", "31;1")
    print(f"{mark}: {result.finding.text}")
    others = ", ".join(name for name in INCIDENTS if name != result.name)
    print(
        f"\nNext: ingero demo --no-gpu SCENARIO with {others}; "
        "`sudo ingero trace` shows your own machine."
    )
