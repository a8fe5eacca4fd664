// Every agent: who is silent, how old its last push is, its version, lost records, mode and clock.
import { useState } from "./hooks.mjs";
import { Badge, html, link, number, span, useFocusTitle } from "./parts.mjs";
import { NODE } from "./live.mjs";

const MOST = 200;
const FAR_S = 5;  // a clock that is further off disturbs traces
const COLUMNS = [
  ["node", NODE.id], ["state", NODE.state], ["last push", NODE.seen], ["score", NODE.score], ["ranks", NODE.ranks], ["mode", NODE.mode],
  ["version", NODE.version], ["lost records", NODE.lost], ["clock ahead", NODE.offset], ["job", NODE.job], ["GPU", NODE.gpu],
];

export function Agents({ live, cluster }) {
  const [text, setText] = useState(new URLSearchParams(location.search).get("filter") || ""), [order, setOrder] = useState(null);
  useFocusTitle("Agents");
  const rows = [...live.clusters.values()].filter((view) => !cluster || view.cluster_id === cluster)
    .flatMap((view) => view.ids.map((id) => [view, view.nodes.get(id)]));
  const wanted = text.toLowerCase();
  const found = rows.filter(([view, node]) => !wanted || [node[NODE.id], node[NODE.state], node[NODE.mode], node[NODE.version], node[NODE.job], view.cluster_id].some((each) => String(each ?? "").toLowerCase().includes(wanted)));
  const urgent = ([, node]) => (node[NODE.state] === "silent" ? 0 : node[NODE.lost] ? 1 : Math.abs(node[NODE.offset] ?? 0) > FAR_S ? 2 : 3);
  found.sort((a, b) => order === null ? urgent(a) - urgent(b) || a[1][NODE.seen] - b[1][NODE.seen] : compare(a[1][order], b[1][order]));
  const filter = (event) => {
    setText(event.target.value);
    const query = new URLSearchParams(location.search);
    event.target.value ? query.set("filter", event.target.value) : query.delete("filter");
    history.replaceState(null, "", location.pathname + (query.size ? "?" + query : ""));
  };
  const silent = rows.filter(([, node]) => node[NODE.state] === "silent").length;
  return html`<h1>${rows.length} agents, ${silent ? `${silent} of them silent` : "none is silent"}</h1>
    <p><label>Filter <input type="search" value=${text} onInput=${filter} placeholder="node, state, job, version" /></label></p>
    <div class="wide"><table class="stack"><thead><tr>${COLUMNS.map(([name, at]) => html`<th scope="col" aria-sort=${order === at ? "ascending" : "none"}><button type="button" onClick=${() => setOrder(order === at ? null : at)}>${name}${order === at ? " ↑" : ""}</button></th>`)}</tr></thead>
    <tbody>${found.slice(0, MOST).map(([view, node]) => html`<tr key=${view.cluster_id + "/" + node[NODE.id]}>
      <th scope="row"><a href=${link("node", node[NODE.id], view.cluster_id)}>${node[NODE.id]}</a></th>
      <td><${Badge} state=${node[NODE.slow] ? "slow" : node[NODE.state] || "learning"}>${node[NODE.slow] ? "slow" : node[NODE.state] || "no score"}</${Badge}></td>
      <td data-label="last push">${span(view.at - node[NODE.seen])} ago</td>
      <td data-label="score">${number(node[NODE.score], 3)}</td>
      <td data-label="ranks">${node[NODE.ranks]}</td>
      <td data-label="mode">${node[NODE.mode] ?? "–"}</td>
      <td data-label="version">${node[NODE.version] ?? "–"}</td>
      <td data-label="lost records" class=${node[NODE.lost] ? "bigger" : ""}>${node[NODE.lost] ?? "–"}</td>
      <td data-label="clock ahead" class=${Math.abs(node[NODE.offset] ?? 0) > FAR_S ? "bigger" : ""}>${node[NODE.offset] == null ? "–" : (Math.round(node[NODE.offset]) || 0) + " s"}</td>
      <td data-label="job">${node[NODE.job] ? html`<a href=${link("job", node[NODE.job], view.cluster_id)}>${node[NODE.job]}</a>` : "–"}</td>
      <td data-label="GPU">${node[NODE.gpu] ?? "–"}</td></tr>`)}</tbody></table></div>
    ${found.length > MOST && html`<p class="dim">The first ${MOST} of ${found.length}; the filter finds the rest.</p>`}
    <p class="dim small">A dash means that the agent did not report the value. Clocks are compared while somebody watches, to about a second.</p>`;
}

const compare = (a, b) => a == null ? (b == null ? 0 : 1) : b == null ? -1 : a < b ? -1 : a > b ? 1 : 0;
