// Echo's page: a form for every question, made from the OpenAPI document, and answers with an address.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Copy, Login, clock, dollars, html, percent } from "./parts.mjs";
import { ask, getToken, headers, setToken } from "./token.mjs";

const SQL = "run_analysis", TOOLS = "/api/v2/tools/";
const short = (name) => name.split(".").at(-1);

function place() {
  const name = decodeURIComponent(location.pathname.split("/")[2] || "");
  return { name, values: Object.fromEntries(new URLSearchParams(location.search)) };
}

const address = (name, values) => {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));
  return `/ask/${encodeURIComponent(name)}` + (query.size ? "?" + query : "");
};
const withFormat = (url, format) => url + (url.includes("?") ? "&" : "?") + "format=" + format;

function App() {
  const [at, setAt] = useState(place()), [api, setApi] = useState(null);
  const load = async () => setApi(await ask("/api/v2/openapi.json"));
  const go = (url) => { history.pushState(null, "", url); setAt(place()); };
  useEffect(() => {
    load();
    const back = () => setAt(place());
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header><div class="bar"><a class="brand" href="/" onClick=${(event) => { if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return; event.preventDefault(); go("/"); }}>Ingero Echo</a><span class="right">${getToken() && html`<button type="button" onClick=${() => { setToken(""); location.reload(); }}>forget token</button>`}</span></div></header>
    <main id="main" tabindex="-1">${!api ? html`<h1>Ingero Echo</h1><p class="dim">connecting …</p>`
      : api.status === 401 || api.status === 403 ? html`<${Login} title="Echo wants a token" text=${api.status === 403 ? api.error : "Echo keeps the history of all clusters. Enter a token with the scope read. It is kept for this tab only."} again=${load} />`
      : api.error ? html`<h1>Echo does not answer</h1><p role="alert">${api.error}</p><button type="button" onClick=${load}>try again</button>`
      : html`<${Questions} api=${api} at=${at} go=${go} />`}</main>`;
}

function Questions({ api, at, go }) {
  const tools = Object.entries(api.paths).filter(([path]) => path.startsWith(TOOLS) && path !== TOOLS + "list").map(([path, item]) => ({ name: path.slice(TOOLS.length), ...item.post }));
  const tool = tools.find((each) => short(each.name) === at.name || each.name === at.name);
  useEffect(() => { document.title = (tool ? tool.summary.slice(0, 60) : "Ask") + " – Ingero Echo"; }, [tool?.name]);
  const open = (event, url) => { if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return; event.preventDefault(); go(url); };
  return html`<h1>${tool ? tool.summary : "The history of your clusters"}</h1>
    ${tool ? html`<div class="asking"><nav aria-label="Questions"><ul>${tools.map((each) => { const url = address(short(each.name), {}); return html`<li key=${each.name}><a href=${url} aria-current=${each === tool ? "page" : null} onClick=${(event) => open(event, url)}>${short(each.name).replaceAll("_", " ")}</a></li>`; })}</ul></nav>
    <div><${Question} key=${tool.name} api=${api} tool=${tool} at=${at} go=${go} /></div></div>` : html`<${History} tools=${tools} open=${open} />`}`;
}

// The episodes that Fleet decided about lately, and what can be asked. Each leads to an address of its own.
const EPISODES = `SELECT episode, cluster_id, arg_max(node_id, ts) AS node, arg_max(rank, ts) AS rank, arg_max(job_id, ts) AS job,
  min(since) AS began, max(ts) AS until, arg_max(state, ts) AS state, arg_max(class, ts) AS class, max(loss) AS loss,
  max(usd_per_hour) AS usd_per_hour, arg_max(coalesce(cause, evidence), ts) FILTER (WHERE state <> 'resolved') AS why
FROM verdicts WHERE received_ts > (SELECT max(received_ts) FROM verdicts) - INTERVAL 7 DAY GROUP BY episode, cluster_id
HAVING bool_or(state IN ('straggler', 'fleet_event', 'not_sure', 'late', 'overloaded')) ORDER BY began DESC`;
const story = (episode) => `SELECT ts, state, class, loss, usd_per_hour, cause, collective, evidence, next FROM verdicts WHERE episode = '${episode.replaceAll("'", "''")}' ORDER BY ts`;
const time = (text) => text ? clock(new Date(text.replace(" ", "T").replace(/(\.\d{3})\d*/, "$1") + (/[Z+]/.test(text) ? "" : "Z")).getTime() / 1000) : "–";

function History({ tools, open }) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => { ask(withFormat(address(SQL, { sql: EPISODES, limit: 200 }), "json")).then(setAnswer); }, []);
  const rows = answer?.data?.rows.map((row) => Object.fromEntries(answer.data.columns.map((name, i) => [name, row[i]])));
  const go = (url) => (event) => open(event, url);
  return html`<h2>Episodes of the last seven days</h2>
    ${!answer ? html`<p role="status" class="dim">asking …</p>` : answer.error ? html`<p role="alert">${answer.error}</p>`
      : !rows.length ? html`<p class="dim">None. Fleet sends its verdicts here where Echo is one of its exporters.</p>`
      : html`<div class="wide"><table class="stack"><thead><tr>${["who", "state", "class", "job lost", "cost", "began", "why"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((e) => { const url = address(SQL, { sql: story(e.episode) }); return html`<tr key=${e.cluster_id + e.episode}>
        <th scope="row"><a href=${url} onClick=${go(url)}>${e.rank == null ? e.node || "many members" : `rank ${e.rank} on ${e.node}`}</a><br /><span class="small dim">${[e.job && `job ${e.job}`, `cluster ${e.cluster_id}`].filter(Boolean).join(", ")}</span></th>
        <td><${Badge} state=${e.state} /></td><td data-label="class">${e.class ?? "unknown"}</td>
        <td data-label="job lost" class="short">${e.loss == null ? "–" : percent(e.loss)}</td><td data-label="cost" class="short">${e.usd_per_hour == null ? "–" : dollars(e.usd_per_hour) + "/h"}</td>
        <td data-label="began" class="short">${time(e.began)}</td><td class="evidence">${e.why ?? ""}</td></tr>`; })}</tbody></table></div>`}
    <h2>Questions</h2><p>Each answer has an address of its own that you can send to others, as a page, as JSON and as CSV.</p>
    <dl class="questions">${tools.map((each) => { const url = address(short(each.name), {}); return html`<div key=${each.name}><dt><a href=${url} onClick=${go(url)}>${short(each.name).replaceAll("_", " ")}</a></dt><dd>${each.summary}</dd></div>`; })}</dl>`;
}

// A schema, wherever it is kept in the document.
function resolve(api, schema) {
  while (schema?.$ref) schema = schema.$ref.slice(2).split("/").reduce((node, part) => node[part], api);
  return schema ?? {};
}

const kindOf = (api, schema) => {
  const found = resolve(api, schema);
  const choice = found.anyOf?.map((each) => resolve(api, each)).find((each) => each.type !== "null") ?? found;
  return { ...choice, description: found.description ?? choice.description, default: found.default ?? choice.default };
};

function Question({ api, tool, at, go }) {
  const schema = resolve(api, tool.requestBody.content["application/json"].schema);
  const fields = Object.entries(schema.properties ?? {}).map(([name, each]) => [name, kindOf(api, each), (schema.required ?? []).includes(name)]);
  const url = address(at.name, at.values), mustAsk = fields.every(([name, , needed]) => !needed || at.values[name]);
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    if (!mustAsk || (!location.search && fields.some(([, , needed]) => needed))) return setAnswer(null);
    let isOver = false;
    setAnswer("asking");
    ask(withFormat(url, "json")).then((found) => { if (!isOver) setAnswer(found); });
    return () => { isOver = true; };
  }, [url]);
  const submit = (event) => { event.preventDefault(); go(address(at.name, Object.fromEntries(new FormData(event.target)))); };
  return html`<p class="about">${tool.description.split("\n").slice(1).join("\n").trim()}</p>
    <form class="question" key=${url} onSubmit=${submit}>${fields.map(([name, each, needed]) => html`<label key=${name}><span>${name.replaceAll("_", " ")}${needed ? "" : html` <span class="dim">optional</span>`}</span>
      ${name === "sql" ? html`<textarea name="sql" rows="5" required spellcheck="false" defaultValue=${at.values.sql ?? ""} />`
        : each.enum ? html`<select name=${name}><option value="">–</option>${each.enum.map((value) => html`<option value=${value} selected=${String(at.values[name] ?? "") === String(value)}>${value}</option>`)}</select>`
        : html`<input name=${name} required=${needed} type=${each.type === "integer" || each.type === "number" ? "number" : "text"} step=${each.type === "integer" ? "1" : "any"} min=${each.minimum} max=${each.maximum} defaultValue=${at.values[name] ?? ""} placeholder=${each.default == null ? "" : String(each.default)} autocomplete="off" />`}
      ${each.description && html`<span class="small dim">${each.description}</span>`}</label>`)}
      <div class="buttons"><button class="main">Ask</button>${answer && answer !== "asking" && html`<${Save} url=${url} format="json" name=${at.name} /><${Save} url=${url} format="csv" name=${at.name} /><${Copy} text=${`curl -H "Authorization: Bearer $TOKEN" '${location.origin}${withFormat(url, "csv").replaceAll("'", "%27")}'`} label="copy as curl" />`}</div></form>
    ${answer === "asking" ? html`<p role="status" class="dim">asking …</p>` : answer?.error ? html`<p role="alert" class="bigger">${answer.error}</p>` : answer ? html`<${Answer} data=${answer.data} meta=${answer.meta} />` : ""}`;
}

function Save({ url, format, name }) {
  const save = async () => {
    const reply = await fetch(withFormat(url, format), { headers: headers(), cache: "no-store" });
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(await reply.blob());
    anchor.download = `${name}.${format}`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
  };
  return html`<button type="button" onClick=${save}>${format.toUpperCase()}</button>`;
}

const MOST_ROWS = 500;
function Answer({ data, meta }) {
  const simple = Object.entries(data).filter(([, value]) => value !== null && typeof value !== "object");
  return html`<section aria-label="Answer" aria-live="polite"><p class="small dim">answered in ${meta.duration_ms.toFixed(0)} ms</p>
    ${simple.length && !data.columns ? html`<dl class="facts">${simple.map(([name, value]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${String(value)}</dd></div>`)}</dl>` : ""}
    ${data.columns ? html`<${Table} columns=${data.columns} rows=${data.rows} />` : Object.entries(data).filter(([, value]) => value !== null && typeof value === "object").map(([name, value]) => html`<h2>${name.replaceAll("_", " ")}</h2><${Value} value=${value} />`)}</section>`;
}

function Value({ value }) {
  if (Array.isArray(value)) {
    if (!value.length) return html`<p class="dim">none</p>`;
    if (typeof value[0] !== "object") return html`<p>${value.join(", ")}</p>`;
    const columns = [...new Set(value.flatMap((row) => Object.keys(row)))];
    return html`<${Table} columns=${columns} rows=${value.map((row) => columns.map((name) => row[name]))} />`;
  }
  return html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
}

function Table({ columns, rows }) {
  if (!rows.length) return html`<p class="dim">no rows</p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="Rows"><table><thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, MOST_ROWS).map((row) => html`<tr>${row.map((cell) => html`<td>${cell === null || cell === undefined ? html`<span class="dim">–</span>` : typeof cell === "object" ? JSON.stringify(cell) : String(cell)}</td>`)}</tr>`)}</tbody></table></div>
    <p class="small dim">${rows.length} rows${rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown, CSV has all` : ""}</p>`;
}

render(html`<${App} />`, document.getElementById("app"));
