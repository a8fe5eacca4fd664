// Every agent: who is silent, how old its last push is, its version, lost records, mode and clock.
import { useState } from "./hooks.mjs";
import { Badge, html, useTitle } from "./parts.mjs";
import { MISSING, link, many, number, span } from "./format.mjs";
import { NODE, slowNodes } from "./live.mjs";

const MOST = 200;
const FAR_S = 5;  // a clock that is further off disturbs traces
const COLUMNS = [
  ["node", NODE.id], ["state", NODE.state], ["last push", NODE.seen], ["score", NODE.score],
  ["ranks", NODE.ranks], ["mode", NODE.mode], ["version", NODE.version],
  ["lost records", NODE.lost], ["clock ahead", NODE.offset], ["job", NODE.job], ["GPU", NODE.gpu],
];
const NUMBERS = new Set([NODE.seen, NODE.score, NODE.ranks, NODE.lost, NODE.offset]);
const SEARCHED = [NODE.id, NODE.state, NODE.mode, NODE.version, NODE.job];

// Agents as [view, node, state].
function agentsOf(live, cluster) {
  return [...live.clusters.values()].filter((view) => !cluster || view.cluster_id === cluster)
    .flatMap((view) => {
      const slow = slowNodes(view);
      return view.ids.map((id) => {
        const node = view.nodes.get(id), isSlow = slow.has(id) || node[NODE.slow];
        return [view, node, isSlow ? "slow" : node[NODE.state] || "no score"];
      });
    });
}

const isFar = (node) => Math.abs(node[NODE.offset] ?? 0) > FAR_S;
function urgency([, node, state]) {
  const first = [state === "silent", state === "slow", node[NODE.lost] > 0, isFar(node), true];
  return first.indexOf(true);
}
const order = (a, b) =>
  a == null || b == null ? (a == null) - (b == null) : a < b ? -1 : a > b ? 1 : 0;

function matches([view, node, state], text) {
  const words = [view.cluster_id, state, ...SEARCHED.map((at) => node[at] ?? "")];
  return words.some((each) => String(each).toLowerCase().includes(text));
}

export function Agents({ live, cluster }) {
  const given = new URLSearchParams(location.search).get("filter") || "";
  const [text, setText] = useState(given), [column, setColumn] = useState(null);
  useTitle("Agents");
  const filter = ({ target: { value } }) => {
    setText(value);
    const query = new URLSearchParams(location.search);
    value ? query.set("filter", value) : query.delete("filter");
    history.replaceState(null, "", location.pathname + (query.size ? "?" + query : ""));
  };
  const agents = agentsOf(live, cluster), wanted = text.toLowerCase();
  const found = agents.filter((each) => matches(each, wanted));
  const first = column === null
    ? (a, b) => urgency(a) - urgency(b) : (a, b) => order(a[1][column], b[1][column]);
  found.sort((a, b) => first(a, b) || order(a[1][NODE.id], b[1][NODE.id]));
  const silent = agents.filter(([, , state]) => state === "silent").length;
  const quiet = silent ? `${silent} of them silent` : "none is silent";
  return html`<h1>${many(agents.length, "agent")}, ${quiet}</h1>
    <p><label>Filter <input type="search" value=${text} onInput=${filter}
      placeholder="node, state, job, version" /></label></p>
    <div class="wide"><table class="stack"><thead><tr>
      ${COLUMNS.map(([name, at]) => html`<${Sorter} name=${name} isNumber=${NUMBERS.has(at)}
        isOn=${column === at} toggle=${() => setColumn(column === at ? null : at)} />`)}
    </tr></thead>
    <tbody>${found.slice(0, MOST).map(([view, node, state]) => html`<${Agent}
      key=${view.cluster_id + "/" + node[NODE.id]} view=${view} node=${node} state=${state} />`)}
    </tbody></table></div>
    ${found.length > MOST && html`<p class="dim">
      The first ${MOST} of ${found.length}; the filter finds the rest.</p>`}
    <p class="dim small">A dash means that the agent did not report the value.
      ${" Clocks are compared while somebody watches, to about a second."}</p>`;
}

const Sorter = ({ name, isNumber, isOn, toggle }) => html`<th scope="col"
  class=${isNumber ? "n" : ""} aria-sort=${isOn ? "ascending" : "none"}>
  <button type="button" onClick=${toggle}>${name}${isOn ? " ↑" : ""}</button></th>`;

function Agent({ view, node, state }) {
  const id = view.cluster_id, job = node[NODE.job], offset = node[NODE.offset];
  return html`<tr>
    <th scope="row"><a href=${link("node", node[NODE.id], id)}>${node[NODE.id]}</a></th>
    <td><${Badge} state=${state === "no score" ? "learning" : state}>${state}</${Badge}></td>
    <td class="n" data-label="last push">${span(view.at - node[NODE.seen])} ago</td>
    <td class="n" data-label="score">${number(node[NODE.score], 3)}</td>
    <td class="n" data-label="ranks">${node[NODE.ranks]}</td>
    <td data-label="mode">${node[NODE.mode] ?? MISSING}</td>
    <td data-label="version">${node[NODE.version] ?? MISSING}</td>
    <td data-label="lost records" class=${node[NODE.lost] ? "n bigger" : "n"}>
      ${node[NODE.lost] ?? MISSING}</td>
    <td data-label="clock ahead" class=${isFar(node) ? "n bigger" : "n"}>
      ${offset == null ? MISSING : number(offset, 0) + " s"}</td>
    <td data-label="job">${job ? html`<a href=${link("job", job, id)}>${job}</a>` : MISSING}</td>
    <td data-label="GPU">${node[NODE.gpu] ?? MISSING}</td>
  </tr>`;
}
