// The first screen: who is slow now, in one sentence per cluster, and everything behind it.
import { Badge, Columns, Facts, Headline, Sentence, html, useTitle } from "./parts.mjs";
import { dollars, link, number, percent } from "./format.mjs";
import { Timeline, Verdicts } from "./verdicts.mjs";
import { Silences } from "./silence.mjs";
import { slowNodes } from "./live.mjs";
import { Chart } from "./chart.mjs";
import { NodeMap } from "./map.mjs";

const URGENCY = ["slow", "fleet_event", "not_sure", "suspect", "silenced", "calm"];
const REASONS = { few_nodes: "too few active nodes", panic: "most nodes fell together" };
const MOST_WHOLE = 3;  // clusters that are shown with everything behind their sentence
const LINES = [["threshold", "bad", [6, 4]], ["median score", "ok"]];

export function Now({ live, cluster, go }) {
  const urgency = (view) => URGENCY.indexOf(view.summary.headline.kind);
  const views = [...live.clusters.values()]
    .filter((view) => !cluster || view.cluster_id === cluster)
    .sort((a, b) => urgency(a) - urgency(b) || a.cluster_id.localeCompare(b.cluster_id));
  useTitle(views.length ? views[0].summary.headline.text.slice(0, 60) : "Fleet");
  if (!views.length) return html`<${Sentence} kind="not_sure" text="No node has pushed yet.">
    <p class="dim">Start <code>ingero fleet-push</code> on a node; the page follows by itself.</p>
  </${Sentence}>`;
  return html`${views.map((view, i) =>
      html`<${Headline} key=${view.cluster_id} view=${view} more=${i > 0} />`)}
    ${views.slice(0, MOST_WHOLE).map((view) =>
      html`<${Cluster} key=${view.cluster_id} view=${view} go=${go} />`)}
    ${views.length > MOST_WHOLE && html`<h2>Other clusters</h2>
      <ul>${views.slice(MOST_WHOLE).map(({ cluster_id: id }) =>
        html`<li><a href=${link("", null, id)}>${id}</a></li>`)}</ul>`}`;
}

function Cluster({ view, go }) {
  const { summary, cluster_id: id } = view;
  const open = view.verdicts.filter((v) => v.state !== "resolved");
  const suspects = new Set(open.filter((v) => v.state !== "straggler").map((v) => v.node));
  const label = `Threshold ${number(summary.threshold)}, median score ${number(summary.median)}`;
  return html`<section aria-label=${"Cluster " + id}>
    <h2>Cluster <a href=${link("", null, id)}>${id}</a></h2>
    ${open.length > 0 && html`<${Verdicts} view=${view} verdicts=${open} />`}
    <${Silences} silences=${view.silences} />
    <${Strip} s=${summary} view=${view} />
    <h3>All nodes</h3>
    <${NodeMap} view=${view} slow=${slowNodes(view)} suspects=${suspects} go=${go} />
    ${view.jobs.length > 0 && html`<h3>Jobs</h3><${Jobs} view=${view} />`}
    <h3>Episodes of the last 24 hours</h3>
    <${Timeline} view=${view} episodes=${[...view.episodes.values()]} />
    <h3>Threshold and median, while this page is open</h3>
    <${Chart} rows=${view.past} series=${LINES} label=${label} />
  </section>`;
}

function Strip({ s, view }) {
  const nodes = (state) => s.nodes_by_state[state] || 0;
  const { gpus, usd_per_hour: price } = s.idle_gpus;
  const quorum = s.quorum_met ? "yes" : "no: " + (REASONS[s.quorum_reason] || "not known yet");
  const lost = view.verdicts.filter((v) => ["straggler", "fleet_event"].includes(v.state))
    .reduce((sum, v) => sum + (v.usd_per_hour ?? 0), 0);
  return html`<${Facts} items=${[
    ["nodes", view.nodes.size],
    ["silent", nodes("silent"), nodes("silent") > 0],
    ["idle", nodes("idle")],
    gpus > 0 && ["idle GPUs", gpus + (price ? `: ${dollars(price)}/h` : ", no known price")],
    ["ranks judged", s.ranks.judged + (s.ranks.learning ? `, ${s.ranks.learning} learning` : "")],
    ["threshold", number(s.threshold, 3)],
    ["median score", number(s.median, 3)],
    ["spread (MAD)", number(s.mad, 4)],
    ["below threshold", s.below_threshold, s.below_threshold > 0],
    ["quorum", quorum, !s.quorum_met],
    ["coverage", percent(s.coverage, 0), s.coverage_low],
    s.panic && ["panic", s.panic, true],
    lost > 0 && ["lost now", dollars(lost) + "/h", true],
  ]} />`;
}

function Jobs({ view }) {
  const ranks = (job) =>
    job.ranks + (job.world_size && job.world_size !== job.ranks ? " of " + job.world_size : "");
  const nobody = view.summary.ranks.judged ? "nobody" : "not known yet";
  return html`<div class="wide"><table>
    <${Columns} names=${["job", "#ranks", "#nodes", "slow"]} />
    <tbody>${view.jobs.map((job) => html`<tr key=${job.job_id}>
      <th scope="row"><a href=${link("job", job.job_id, view.cluster_id)}>${job.job_id}</a></th>
      <td class="n">${ranks(job)}</td>
      <td class="n">${job.nodes}</td>
      <td>${job.slow ? html`<${Badge} state="slow">${job.slow} slow</${Badge}>` : nobody}</td>
    </tr>`)}</tbody></table></div>`;
}
