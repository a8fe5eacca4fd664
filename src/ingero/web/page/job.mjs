// One job: its ranks by role or by node, the last 300 steps, and who waits for whom.
import { Facts, Sentence, html, useTitle } from "./parts.mjs";
import { change, link, number, percent } from "./format.mjs";
import { Timeline, Verdicts } from "./verdicts.mjs";
import { RANK } from "./live.mjs";
import { StepStrip } from "./strip.mjs";

const AXIS = /(pp|dp|tp)[-_=: ]?(\d+)/gi;
const NOTICEABLE = 0.02, AWAITED = 0.005;  // shares of own time, and of a step
const MOST_NAMED = 3, MOST_BARS = 8;
const name = (rank) => rank[RANK.rank] == null ? rank[RANK.node] : "rank " + rank[RANK.rank];
const whole = (rank) =>
  rank[RANK.rank] == null ? name(rank) : `${name(rank)} on ${rank[RANK.node]}`;

// The place of a rank in the job, such as { pp: 0, dp: 3, tp: 1 }, where its role says it.
const placeOf = (rank) => Object.fromEntries(
  [...rank[RANK.role].matchAll(AXIS)].map(([, axis, at]) => [axis.toLowerCase(), Number(at)]));

// Rows of the grid: by pipeline stage and data-parallel group where roles say them, then by role,
// else by node. Within a row, ranks are in the order of their place in a tensor-parallel group.
function layOut(ranks) {
  const byRole = ranks.some((rank) => rank[RANK.role]), rows = new Map();
  for (const rank of ranks) {
    const place = placeOf(rank), axes = ["pp", "dp"].filter((axis) => place[axis] != null);
    const title = axes.length ? axes.map((axis) => `${axis} ${place[axis]}`).join(", ")
      : byRole ? rank[RANK.role] || "no role" : rank[RANK.node];
    if (!rows.has(title)) rows.set(title, []);
    rows.get(title).push([place.tp ?? rank[RANK.rank] ?? 0, rank]);
  }
  if (!byRole && rows.size === ranks.length) return [["all", ranks]];  // one rank per node
  const inOrder = (cells) => cells.sort((a, b) => a[0] - b[0]).map(([, rank]) => rank);
  return [...rows].map(([title, cells]) => [title, inOrder(cells)]);
}

function sentence(id, ranks, slow) {
  if (!ranks.length) return `Fleet has no measurements of job ${id}.`;
  if (!slow.length) return `Nobody is slow in job ${id}.`;
  const named = slow.slice(0, MOST_NAMED).map(whole).join(", ").replace(/^rank/, "Rank");
  const more = slow.length > MOST_NAMED ? ` and ${slow.length - MOST_NAMED} more` : "";
  return `${named}${more} ${slow.length > 1 ? "are" : "is"} slow in job ${id}.`;
}

export function Job({ live, view, id }) {
  useTitle("Job " + id);
  const verdicts = view.verdicts.filter((v) => v.job === id && v.state !== "resolved");
  const job = view.jobs.find((each) => each.job_id === id);
  const ranks = live.ranks?.job_id === id ? live.ranks.ranks : [];
  const slow = ranks.filter((rank) => rank[RANK.state] === "straggler");
  const kind = slow.length ? "slow" : ranks.length ? "calm" : "not_sure";
  const episodes = [...view.episodes.values()].filter((each) => each.verdict.job === id);
  return html`<${Sentence} kind=${kind} text=${sentence(id, ranks, slow)} />
    ${job && html`<${JobFacts} job=${job} ranks=${ranks} />`}
    ${verdicts.length > 0 && html`<${Verdicts} view=${view} verdicts=${verdicts} />`}
    ${ranks.length > 0 && html`<h2>Ranks</h2><${Grid} ranks=${ranks} view=${view} />
      ${live.steps && html`<h2>The last steps</h2><${StepStrip} steps=${live.steps} />`}
      <h2>Who waits for whom</h2><${Waits} ranks=${ranks} />`}
    <h2>Episodes of the last 24 hours</h2>
    <${Timeline} view=${view} episodes=${episodes} />`;
}

function JobFacts({ job, ranks }) {
  const isPart = job.world_size && job.world_size !== job.ranks;
  const learning = ranks.filter((rank) => rank[RANK.state] === "learning").length;
  return html`<${Facts} items=${[
    ["ranks", job.ranks + (isPart ? " of " + job.world_size : "")],
    ["nodes", job.nodes],
    ["still learning", learning],
  ]} />`;
}

// The longest wait of a step where it is measured, else how late ranks arrive.
function Waits({ ranks }) {
  const most = (column, least) => ranks.filter((rank) => rank[column] > least)
    .sort((a, b) => b[column] - a[column]).slice(0, MOST_BARS);
  const awaited = most(RANK.awaited, AWAITED), late = most(RANK.late, 0);
  if (awaited.length) return html`<p>At one collective of each step, the job waits for these alone:
      this share of the step, above what is usual.</p>
    <${Bars} rows=${awaited.map((rank) =>
      [rank, rank[RANK.awaited], percent(rank[RANK.awaited])])} />`;
  if (late.length) return html`<p>How late these ranks arrive at collectives, on average:</p>
    <${Bars} rows=${late.map((rank) =>
      [rank, rank[RANK.late] / late[0][RANK.late], number(rank[RANK.late], 1) + " ms"])} />`;
  return html`<p class="dim">No waiting was measured: agents send whole steps of collectives where
    the NCCL plugin or probes are loaded.</p>`;
}

const Bars = ({ rows }) => html`<ul class="bars">${rows.map(([rank, share, text]) =>
  html`<li key=${name(rank)}><span>${whole(rank)}</span>
    <span class="track" aria-hidden="true">
      <span style=${{ width: Math.min(100, 100 * share) + "%" }}></span>
    </span><span class="n">${text}</span></li>`)}</ul>`;

function Grid({ ranks, view }) {
  const isLearning = ranks.some((rank) => rank[RANK.state] === "learning");
  return html`<div class="grid" role="group" aria-label="Ranks, with the own time of their steps">
      ${layOut(ranks).map(([title, cells]) => html`<div class="row" key=${title}>
        <span class="name" title=${title}>${title}</span>
        <span class="cells">${cells.map((rank) =>
          html`<${Cell} key=${name(rank)} rank=${rank} cluster=${view.cluster_id} />`)}</span>
      </div>`)}</div>
    <p class="small dim">Each cell is a rank, with how much its own time per step is above its
      baseline and peers.
      ${isLearning && " Dashed: what is normal for the rank is still being learned."}</p>`;
}

function Cell({ rank, cluster }) {
  const excess = rank[RANK.excess], state = rank[RANK.state], isSlow = state === "straggler";
  const isWarm = state === "healthy" && excess > NOTICEABLE;
  const above = excess == null ? "still learning" : percent(excess) + " above its baseline";
  const title = `${whole(rank)}: ${isSlow ? "slow" : state}, ` +
    `own time ${number(rank[RANK.own], 1)} ms, ${above}`;
  return html`<a class=${`cell ${state}${isWarm ? " warm" : ""}`} title=${title}
    href=${link("node", rank[RANK.node], cluster)}>
    ${rank[RANK.rank] ?? "node"}
    ${excess != null && html`<br /><span class="small">${change(excess)}</span>`}
    ${isSlow && html`<span class="skip"> slow</span>`}
  </a>`;
}
