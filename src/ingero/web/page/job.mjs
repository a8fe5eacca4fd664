// One job: its ranks by role or by node, the last 300 steps, and who waits for whom.
import { Badge, Facts, Timeline, Verdicts, html, link, number, percent, useFocusTitle } from "./parts.mjs";
import { RANK } from "./live.mjs";
import { StepStrip } from "./draw.mjs";

const AXIS = /(pp|dp|tp)[-_=: ]?(\d+)/gi;
const signed = (share) => { const whole = Math.round(100 * share); return whole ? (whole > 0 ? "+" : "−") + Math.abs(whole) + "%" : "0%"; };
const name = (rank) => rank[RANK.rank] == null ? rank[RANK.node] : "rank " + rank[RANK.rank];

// Rows of the grid: by pipeline stage and data-parallel group where roles say them, then by role, else by node.
export function layOut(ranks) {
  const places = ranks.map((rank) => Object.fromEntries([...rank[RANK.role].matchAll(AXIS)].map((found) => [found[1].toLowerCase(), Number(found[2])])));
  const byRole = ranks.some((rank) => rank[RANK.role]);
  const key = (rank, i) => places[i].pp != null || places[i].dp != null
    ? ["pp", "dp"].filter((axis) => places[i][axis] != null).map((axis) => `${axis} ${places[i][axis]}`).join(", ")
    : byRole ? rank[RANK.role] || "no role" : rank[RANK.node];
  const rows = new Map();
  ranks.forEach((rank, i) => { const at = key(rank, i); rows.has(at) || rows.set(at, []); rows.get(at).push([places[i].tp ?? rank[RANK.rank] ?? 0, rank]); });
  const isThin = !byRole && rows.size === ranks.length;  // one rank per node: one row for all
  if (isThin) return [["all", ranks]];
  return [...rows].map(([title, cells]) => [title, cells.sort((a, b) => a[0] - b[0]).map(([, rank]) => rank)]);
}

export function Job({ live, view, id }) {
  useFocusTitle("Job " + id);
  const verdicts = view.verdicts.filter((v) => v.job === id && v.state !== "resolved");
  const job = view.jobs.find((each) => each.job_id === id), ranks = live.ranks?.job_id === id ? live.ranks.ranks : [];
  const slow = ranks.filter((rank) => rank[RANK.state] === "straggler");
  const awaited = ranks.filter((rank) => rank[RANK.awaited] > 0.005).sort((a, b) => b[RANK.awaited] - a[RANK.awaited]).slice(0, 8);
  const late = ranks.filter((rank) => rank[RANK.late] > 0).sort((a, b) => b[RANK.late] - a[RANK.late]).slice(0, 8);
  const sentence = slow.length ? `${slow.map(name).map((each, i) => i ? each : each.replace(/^rank/, "Rank")).slice(0, 3).join(", ")} ${slow.length > 1 ? "are" : "is"} slow in job ${id}` : ranks.length ? `Nobody is slow in job ${id}` : `Fleet has no measurements of job ${id}`;
  return html`<div role="status" class=${"headline " + (slow.length ? "slow" : ranks.length ? "calm" : "not_sure")}><h1>${sentence}.</h1></div>
    ${job && html`<${Facts} items=${[["ranks", job.ranks + (job.world_size && job.world_size !== job.ranks ? " of " + job.world_size : "")], ["nodes", job.nodes], ["learning", ranks.filter((rank) => rank[RANK.state] === "learning").length]]} />`}
    ${verdicts.length ? html`<${Verdicts} view=${view} verdicts=${verdicts} />` : ""}
    ${ranks.length ? html`<h2>Ranks</h2><${Grid} ranks=${ranks} view=${view} />` : ""}
    ${live.steps && ranks.length ? html`<h2>The last steps</h2><${StepStrip} steps=${live.steps} names=${live.steps.ranks.map((rank) => "rank " + rank)} />` : ""}
    ${ranks.length ? html`<h2>Who waits for whom</h2>${awaited.length
      ? html`<p>The other ranks of the job wait for these, so long in each step and above what is usual:</p><ul class="bars">${awaited.map((rank) => html`<li key=${name(rank)}><span>${name(rank)} on ${rank[RANK.node]}</span><span class="track" aria-hidden="true"><span style=${{ width: Math.min(100, 100 * rank[RANK.awaited]) + "%" }}></span></span><span>${percent(rank[RANK.awaited])}</span></li>`)}</ul>`
      : late.length ? html`<p>How late these ranks arrive at collectives, on average:</p><ul class="bars">${late.map((rank) => html`<li key=${name(rank)}><span>${name(rank)} on ${rank[RANK.node]}</span><span class="track" aria-hidden="true"><span style=${{ width: (100 * rank[RANK.late]) / late[0][RANK.late] + "%" }}></span></span><span>${number(rank[RANK.late], 1)} ms</span></li>`)}</ul>`
      : html`<p class="dim">No waiting was measured: agents send whole steps of collectives where the NCCL plugin or probes are loaded.</p>`}` : ""}
    <h2>Episodes of the last 24 hours</h2>
    <${Timeline} view=${view} episodes=${[...view.episodes.values()].filter((each) => each.verdict.job === id)} />`;
}

function Grid({ ranks, view }) {
  const rows = layOut(ranks);
  return html`<div class="grid" role="group" aria-label="Ranks with the own time of their last steps">${rows.map(([title, cells]) => html`<div class="row" key=${title}><span class="name" title=${title}>${title}</span><span class="cells">${cells.map((rank) => html`<a class=${"cell " + rank[RANK.state] + (rank[RANK.state] === "healthy" && rank[RANK.excess] > 0.02 ? " warm" : "")} href=${link("node", rank[RANK.node], view.cluster_id)}
        title=${`${name(rank)} on ${rank[RANK.node]}: ${rank[RANK.state]}, own time ${number(rank[RANK.own], 1)} ms, ${rank[RANK.excess] == null ? "still learning" : percent(rank[RANK.excess]) + " above its baseline"}`}>${rank[RANK.rank] ?? "node"}${rank[RANK.excess] == null ? "" : html`<br /><span class="small">${signed(rank[RANK.excess])}</span>`}${rank[RANK.state] === "straggler" ? html`<span class="skip"> slow</span>` : ""}</a>`)}</span></div>`)}</div>
    <p class="small dim">Numbers are ranks, with their own time above baseline and peers. ${ranks.some((rank) => rank[RANK.state] === "learning") ? "Dashed: what is normal for the rank is still being learned." : ""}</p>`;
}
