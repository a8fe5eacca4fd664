// The first screen: who is slow now, in one sentence per cluster, and everything behind it.
import { Badge, Facts, Headline, Lift, Timeline, Verdicts, html, link, number, percent, useFocusTitle } from "./parts.mjs";
import { Chart } from "./chart.mjs";
import { NodeMap } from "./draw.mjs";

const URGENCY = ["slow", "fleet_event", "not_sure", "suspect", "silenced", "calm"];
const REASONS = { few_nodes: "too few active nodes", panic: "most nodes fell together" };

export function Now({ live, cluster, go }) {
  const views = [...live.clusters.values()].filter((view) => !cluster || view.cluster_id === cluster)
    .sort((a, b) => URGENCY.indexOf(a.summary.headline.kind) - URGENCY.indexOf(b.summary.headline.kind) || a.cluster_id.localeCompare(b.cluster_id));
  useFocusTitle(views.length ? views[0].summary.headline.text.slice(0, 60) : "Fleet");
  if (!views.length) return html`<div role="status" class="headline not_sure"><h1>No node has pushed yet.</h1><p class="dim">Start <code>ingero fleet-push</code> on a node; the page follows by itself.</p></div>`;
  const [first, ...others] = views;
  return html`<${Headline} view=${first} />
    ${others.map((view) => html`<${Headline} key=${view.cluster_id} view=${view} more=${true} />`)}
    ${views.slice(0, 3).map((view) => html`<${Cluster} key=${view.cluster_id} view=${view} go=${go} />`)}
    ${views.length > 3 && html`<h2>Other clusters</h2><ul>${views.slice(3).map((view) => html`<li><a href=${link("", null, view.cluster_id)}>${view.cluster_id}</a></li>`)}</ul>`}`;
}

function Cluster({ view, go }) {
  const s = view.summary, open = view.verdicts.filter((v) => v.state !== "resolved");
  const slow = new Set(open.filter((v) => v.state === "straggler").map((v) => v.node));
  const suspects = new Set(open.filter((v) => v.state !== "straggler").map((v) => v.node));
  return html`<section aria-label=${"Cluster " + view.cluster_id}>
    <h2>Cluster <a href=${link("", null, view.cluster_id)}>${view.cluster_id}</a></h2>
    ${open.length ? html`<${Verdicts} view=${view} verdicts=${open} />` : ""}
    ${view.silences.length ? html`<h3>Silences</h3><ul>${view.silences.map((each) => html`<li key=${each.target}>${each.target} until ${new Date(each.until * 1000).toLocaleString("en-GB")}: ${each.why} <${Lift} silence=${each} /></li>`)}</ul>` : ""}
    <${Strip} s=${s} view=${view} />
    <h3>All nodes</h3>
    <${NodeMap} view=${view} slow=${slow} suspects=${suspects} go=${go} />
    ${view.jobs.length ? html`<h3>Jobs</h3><div class="wide"><table><thead><tr><th scope="col">job</th><th class="n" scope="col">ranks</th><th class="n" scope="col">nodes</th><th scope="col">slow</th></tr></thead>
      <tbody>${view.jobs.map((job) => html`<tr key=${job.job_id}><th scope="row"><a href=${link("job", job.job_id, view.cluster_id)}>${job.job_id}</a></th><td class="n">${job.ranks}${job.world_size && job.world_size !== job.ranks ? " of " + job.world_size : ""}</td><td class="n">${job.nodes}</td><td>${job.slow ? html`<${Badge} state="slow">${job.slow} slow</${Badge}>` : "nobody"}</td></tr>`)}</tbody></table></div>` : ""}
    <h3>Episodes of the last 24 hours</h3>
    <${Timeline} view=${view} episodes=${[...view.episodes.values()]} />
    <h3>Threshold and median, while this page is open</h3>
    <${Chart} data=${[0, 1, 2].map((i) => view.past.map((row) => row[i]))} series=${[["threshold", "bad", [6, 4]], ["median score", "ok"]]} label=${`Threshold ${number(s.threshold)} and median score ${number(s.median)} over time`} />
  </section>`;
}

function Strip({ s, view }) {
  const count = (state) => s.nodes_by_state[state] || 0;
  const lost = view.verdicts.filter((v) => v.usd_per_hour && ["straggler", "fleet_event"].includes(v.state)).reduce((sum, v) => sum + v.usd_per_hour, 0);
  return html`<${Facts} items=${[
    ["nodes", view.nodes.size],
    ["silent", count("silent"), count("silent") > 0],
    ["idle", count("idle")],
    s.idle_gpus.gpus > 0 && ["idle GPUs", s.idle_gpus.gpus + (s.idle_gpus.usd_per_hour ? ": $" + s.idle_gpus.usd_per_hour.toFixed(2) + "/h" : ", no known price")],
    ["ranks judged", s.ranks.judged + (s.ranks.learning ? `, ${s.ranks.learning} learning` : "")],
    ["threshold", number(s.threshold, 3)],
    ["median", number(s.median, 3)],
    ["MAD", number(s.mad, 4)],
    ["below threshold", s.below_threshold, s.below_threshold > 0],
    ["quorum", s.quorum_met ? "yes" : "no: " + (REASONS[s.quorum_reason] || "not known yet"), !s.quorum_met],
    ["coverage", percent(s.coverage, 0), s.coverage_low],
    s.panic && ["panic", s.panic, true],
    lost > 0 && ["lost now", "$" + lost.toFixed(2) + "/h", true],
  ]} />`;
}
