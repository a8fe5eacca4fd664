"""The cost of waiting: GPU time that ranks spend in collectives because of a late rank."""

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from ingero.contract import names
from ingero.core.collectives.columns import Floats
from ingero.core.cost import idle_cost
from ingero.echo.tools.asker import Answered, Asked, Asker, Limit, question
from ingero.echo.tools.records import Records, load_records

_OPEN_EPISODES: Final = """SELECT coalesce(sum(usd_per_hour), 0), count(usd_per_hour)
FROM (SELECT state, usd_per_hour FROM verdicts
  WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)
  QUALIFY row_number() OVER (PARTITION BY episode ORDER BY ts DESC, seq DESC, idx DESC) = 1)
WHERE state IN ('straggler', 'suspect', 'recovering')"""

# the newest figure of each kind of GPU, as Fleet sends it
_IDLE_GPUS: Final = """SELECT coalesce(sum(usd), 0) FROM (SELECT arg_max(value_double, ts) AS usd
  FROM events WHERE cluster_id = $1 AND received_ts >= make_timestamp($2) AND metric_name = $3
  GROUP BY attrs)"""

_HARDWARE: Final = """SELECT node_id, arg_max(provider, ts), arg_max(gpu_model, ts) FROM events
WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)
  AND provider IS NOT NULL AND node_id IS NOT NULL
GROUP BY node_id"""


class CostQuestion(Asked, kw_only=True):
    """What waiting costs, by node, operation or provider."""

    group_by: Annotated[
        Literal["node", "op", "provider"],
        Meta(
            description="Group the cost by the node that was late, by operation, or by the "
            "provider of the GPUs that waited."
        ),
    ] = "node"
    usd_per_gpu_hour: (
        Annotated[
            float,
            Meta(
                description="Price per GPU hour to use instead of the rate table.", ge=0, le=100_000
            ),
        ]
        | None
    ) = None
    gpus_per_rank: Annotated[
        int, Meta(description="Number of GPUs that wait with each rank.", ge=1, le=64)
    ] = 1
    limit: Limit = 20


class CostRow(msgspec.Struct):
    """One group; `amount` is null if no rate is known for the GPUs that waited."""

    name: str
    waited_gpu_seconds: float
    amount: float | None
    collectives: int


class CostAnswer(Answered, kw_only=True):
    """Amounts are in `currency`. Per hour means per hour of the time covered by the records.

    `estimated` means that agents sent a sample of all collectives; amounts are for all of them.
    """

    rows: list[CostRow]
    currency: str
    group_by: str
    amount: float
    amount_per_hour: float | None
    waited_gpu_seconds: float
    unpriced_gpu_seconds: float
    open_episodes_usd_per_hour: float
    idle_gpus_usd_per_hour: float
    rates_as_of: str
    estimated: bool = False


@question
async def get_cost(asker: Asker, asked: CostQuestion) -> CostAnswer:
    """Cost of the time that ranks waited for a late one, by node, operation or provider.

    For each collective: seconds waited x ranks that waited x GPUs per rank x price per GPU hour /
    3600. Prices come from the rate table by provider and GPU model; pass usd_per_gpu_hour to use
    your own. The answer also has the hourly cost of Fleet's open straggler episodes, and of GPUs
    that are held although nothing runs on them.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    since: list[Any] = [cluster, asker.since_us(asked.window)]
    idle = asker.query(_IDLE_GPUS, [*since, names.FLEET_IDLE_GPU_COST])
    collectives = load_records(asker, cluster, asked.window)
    found = await asyncio.gather(asker.query(_OPEN_EPISODES, since), idle, collectives)
    ((open_usd, _),), ((idle_usd,),), loaded = found[0].rows, found[1].rows, found[2]
    rows: list[CostRow] = []
    span_h = unpriced = 0.0
    if loaded is not None:
        rate = await _rates(asker, cluster, loaded, asked)
        rows, span_h, unpriced = (
            _rows(loaded, asked, rate),
            _span_h(loaded),
            _unpriced(loaded, asked, rate),
        )
    amount = sum(row.amount or 0.0 for row in rows)
    notes = (
        list(loaded.notes)
        if loaded is not None
        else [f"no collective arrived in the window {asked.window}"]
    )
    if unpriced:
        notes.append(_hint(asker, loaded))
    if len(rows) > asked.limit:
        notes.append(f"{len(rows) - asked.limit} more rows; raise limit")
    return CostAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=len(rows) > asked.limit or bool(loaded and loaded.is_cut),
        notes=notes,
        rows=rows[: asked.limit],
        currency=asker.rates.currency_name,
        group_by=asked.group_by,
        amount=amount,
        amount_per_hour=amount / span_h if span_h > 0 else None,
        waited_gpu_seconds=round(sum(row.waited_gpu_seconds for row in rows), 9),
        unpriced_gpu_seconds=round(unpriced, 9),
        open_episodes_usd_per_hour=open_usd,
        idle_gpus_usd_per_hour=idle_usd,
        rates_as_of=asker.rates.as_of,
        estimated=bool(loaded and loaded.estimated_from is not None),
    )


async def _rates(asker: Asker, cluster: str, loaded: Records, asked: CostQuestion) -> Floats:
    """Return the price per hour of each record, NaN if unknown.

    The record's own GPU model is used, or that of its node.
    """
    if asked.usd_per_gpu_hour is not None:
        return np.full(len(loaded.collectives), asked.usd_per_gpu_hour)
    table = [asker.rates.find(provider or None, model or None) for provider, model in loaded.prices]
    rate = np.array([np.nan if rate is None else rate for rate in table])[loaded.price_code]
    if not np.isnan(rate).any():
        return rate
    reported = (await asker.query(_HARDWARE, [cluster, asker.since_us(asked.window)], 20_000)).rows
    by_node = {node: asker.rates.find(provider, model) for node, provider, model in reported}
    of_node = np.array(
        [by_node.get(recorder.node) or np.nan for recorder in loaded.collectives.recorders]
    )
    return np.where(np.isnan(rate), of_node[loaded.collectives.who], rate)


def _rows(loaded: Records, asked: CostQuestion, rate: Floats) -> list[CostRow]:
    waited_s = loaded.wait_ms / 1e3
    groups_of = _names(loaded, asked.group_by)
    found: dict[str, CostRow] = {}
    for code, name in enumerate(groups_of.labels):
        rows = np.flatnonzero((groups_of.codes == code) & (waited_s > 0))
        if not len(rows):
            continue
        priced = rows[~np.isnan(rate[rows])]
        seconds = float(waited_s[rows].sum())
        amounts = [
            idle_cost(
                float(waited_s[priced[rate[priced] == price]].sum()),
                1,
                float(price),
                asked.gpus_per_rank,
            )
            for price in np.unique(rate[priced])
        ]
        amount = sum(amounts) if amounts else None
        groups = loaded.collectives_in(rows)
        found[name] = CostRow(name, round(seconds * asked.gpus_per_rank, 9), amount, groups)
    return sorted(
        found.values(), key=lambda row: (-(row.amount or 0.0), -row.waited_gpu_seconds, row.name)
    )


class _Names(msgspec.Struct):
    codes: Any
    labels: list[str]


def _names(loaded: Records, group_by: str) -> _Names:
    c, waiting = loaded.collectives, loaded.waiting
    if group_by == "op":
        return _Names(c.op, list(c.ops))
    if group_by == "provider":
        return _Names(
            loaded.price_code,
            [f"{provider or 'unknown'} {model}".strip() for provider, model in loaded.prices],
        )
    labels = [
        *sorted({recorder.node or "unknown" for recorder in c.recorders}),
        "no single node",
    ]
    blamed = np.full(int(waiting.groups.max(initial=-1)) + 1, len(labels) - 1)
    rows = np.flatnonzero(waiting.is_last)
    of_recorder = np.array([labels.index(recorder.node or "unknown") for recorder in c.recorders])
    blamed[waiting.groups[rows]] = of_recorder[c.who[rows]]
    return _Names(blamed[waiting.groups], labels)


def _hint(asker: Asker, loaded: Records | None) -> str:
    """Return what to set so that the GPUs without a price get one."""
    pairs = [] if loaded is None else loaded.prices
    for provider, model in pairs:
        if model and asker.rates.find(provider, model) is None:
            return (
                asker.rates.hint(provider, model, "gpu_rates_file") + "; or pass usd_per_gpu_hour"
            )
    return (
        "some GPUs have no rate: set ingero.provider and ingero.gpu_model, or pass usd_per_gpu_hour"
    )


def _unpriced(loaded: Records, asked: CostQuestion, rate: Floats) -> float:
    unknown = np.isnan(rate)
    return float(loaded.wait_ms[unknown].sum()) / 1e3 * asked.gpus_per_rank


def _span_h(loaded: Records) -> float:
    c = loaded.collectives
    return float(c.end_ns.max() - c.start_ns.min()) / 3.6e12
