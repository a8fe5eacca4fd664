// The episodes that Fleet decided about lately, and what can be asked.
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Columns, html } from "./parts.mjs";
import { MISSING, clock, dollars, percent } from "./format.mjs";
import { SQL, askAddress, shortName, withFormat } from "./asking.mjs";
import { ask } from "./token.mjs";

const MOST = 200;
const TITLES = ["who", "state", "class", "#job lost", "#cost", "#began", "why"];
const EPISODES = `SELECT episode, cluster_id, arg_max(node_id, ts) AS node,
  arg_max(rank, ts) AS rank, arg_max(job_id, ts) AS job, min(since) AS began, max(ts) AS until,
  arg_max(state, ts) AS state, arg_max(class, ts) AS class, max(loss) AS loss,
  max(usd_per_hour) AS usd_per_hour,
  arg_max(coalesce(cause, evidence), ts) FILTER (WHERE state <> 'resolved') AS why
FROM verdicts
WHERE received_ts > (SELECT max(received_ts) FROM verdicts) - INTERVAL 7 DAY
GROUP BY episode, cluster_id
HAVING bool_or(state IN ('straggler', 'fleet_event', 'not_sure', 'late', 'overloaded'))
ORDER BY began DESC`;
const story = (episode) => `SELECT ts, state, class, loss, usd_per_hour, cause, collective,
  evidence, next
FROM verdicts WHERE episode = '${episode.replaceAll("'", "''")}' ORDER BY ts`;

// A time of the database: in UTC, and finer than browsers read.
function time(text) {
  if (!text) return MISSING;
  const read = text.replace(" ", "T").replace(/(\.\d{3})\d*/, "$1");
  return clock(new Date(read + (/[Z+]/.test(read) ? "" : "Z")).getTime() / 1000);
}

export function History({ tools }) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    ask(withFormat(askAddress(SQL, { sql: EPISODES, limit: MOST }), "json")).then(setAnswer);
  }, []);
  return html`<h2>Episodes of the last seven days</h2>
    <${Episodes} answer=${answer} />
    <h2>Questions</h2>
    <p>Each answer has an address of its own that you can send to others, as a page, as JSON and as
      CSV.</p>
    <ul class="questions">${tools.map((tool) => html`<li key=${tool.name}>
      <a href=${askAddress(shortName(tool))}>${tool.summary}</a></li>`)}</ul>`;
}

function Episodes({ answer }) {
  if (!answer) return html`<p role="status" class="dim">asking …</p>`;
  if (answer.error) return html`<p role="alert">${answer.error}</p>`;
  const { columns, rows } = answer.data;
  const episodes = rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i]])));
  if (!episodes.length) return html`<p class="dim">
    None. Fleet sends its verdicts here where Echo is one of its exporters.</p>`;
  return html`<div class="wide"><table class="stack"><${Columns} names=${TITLES} />
    <tbody>${episodes.map((e) => html`<tr key=${e.cluster_id + e.episode}>
      <th scope="row"><${Who} e=${e} /></th>
      <td><${Badge} state=${e.state} /></td>
      <td data-label="class">${e.class ?? "unknown"}</td>
      <td data-label="job lost" class="n">${percent(e.loss)}</td>
      <td data-label="cost" class="n">
        ${e.usd_per_hour == null ? MISSING : dollars(e.usd_per_hour) + "/h"}</td>
      <td data-label="began" class="n">${time(e.began)}</td>
      <td class="evidence">${e.why}</td>
    </tr>`)}</tbody></table></div>`;
}

function Who({ e }) {
  const name = e.rank == null ? e.node || "many members" : `rank ${e.rank} on ${e.node}`;
  const where = [e.job && `job ${e.job}`, `cluster ${e.cluster_id}`].filter(Boolean).join(", ");
  return html`<a href=${askAddress(SQL, { sql: story(e.episode) })}>${name}</a><br />
    <span class="small dim">${where}</span>`;
}
