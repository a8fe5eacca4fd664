// One question of Echo: its form, made from the OpenAPI document, and its answer.
import { useEffect, useState } from "./hooks.mjs";
import { Copy, Facts, html, said, saveFile } from "./parts.mjs";
import { MISSING, many } from "./format.mjs";
import { askAddress, fieldsOf, withFormat } from "./asking.mjs";
import { ask, headers } from "./token.mjs";

const MOST_ROWS = 500, LONG = 40;  // rows that are shown, and characters that need a wide column
const ASKING = "asking";
const spaced = (name) => name.replaceAll("_", " ");

export function Question({ api, tool, at, go }) {
  const fields = fieldsOf(api, tool), url = askAddress(at.name, at.values);
  const isComplete = fields.every(({ name, isNeeded }) => !isNeeded || at.values[name]);
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    if (!isComplete) return setAnswer(null);
    let isOver = false;
    setAnswer(ASKING);
    ask(withFormat(url, "json")).then((found) => { if (!isOver) setAnswer(found); });
    return () => { isOver = true; };
  }, [url]);
  const submit = (event) => {
    event.preventDefault();
    go(askAddress(at.name, Object.fromEntries(new FormData(event.target))));
  };
  return html`${aboutOf(tool).map((text) => html`<p class="about">${said(text)}</p>`)}
    <form class="question" key=${url} onSubmit=${submit}>
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} given=${at.values} />`)}
      <div class="buttons"><button class="main">Ask</button>
        ${answer?.data && html`<${Saved} url=${url} name=${at.name} />`}</div>
    </form>
    <${Answer} answer=${answer} at=${at} />`;
}

// The paragraphs below the summary; their lines are broken where the source is.
const aboutOf = (tool) => tool.description.split("\n").slice(1).join("\n").trim()
  .split(/\n\s*\n/).filter(Boolean).map((text) => text.replaceAll("\n", " "));

function Field({ name, kind, isNeeded, given }) {
  return html`<label>
    <span>${spaced(name)}${!isNeeded && html`<span class="dim"> optional</span>`}</span>
    <${Input} name=${name} kind=${kind} isNeeded=${isNeeded} value=${given[name] ?? ""} />
    ${kind.description && html`<span class="small dim">${kind.description}</span>`}
  </label>`;
}

function Input({ name, kind, isNeeded, value }) {
  if (name === "sql") return html`<textarea name="sql" rows="5" required spellcheck="false"
    defaultValue=${value} />`;
  if (kind.enum) return html`<select name=${name}><option value="">${MISSING}</option>
    ${kind.enum.map((each) => html`<option value=${each} selected=${String(each) === value}>
      ${each}</option>`)}</select>`;
  const isNumber = kind.type === "integer" || kind.type === "number";
  return html`<input name=${name} required=${isNeeded} type=${isNumber ? "number" : "text"}
    step=${kind.type === "integer" ? "1" : "any"} min=${kind.minimum} max=${kind.maximum}
    defaultValue=${value} placeholder=${kind.default ?? ""} autocomplete="off" />`;
}

// The same answer as a file, and as a command.
function Saved({ url, name }) {
  const save = (format) => async () => {
    const asked = { headers: headers(), cache: "no-store" };
    const reply = await fetch(withFormat(url, format), asked);
    saveFile([await reply.blob()], reply.headers.get("content-type"), `${name}.${format}`);
  };
  const address = location.origin + withFormat(url, "csv").replaceAll("'", "%27");
  return html`<button type="button" onClick=${save("json")}>JSON</button>
    <button type="button" onClick=${save("csv")}>CSV</button>
    <${Copy} text=${`curl -H "Authorization: Bearer $TOKEN" '${address}'`} label="copy as curl" />`;
}

function Answer({ answer, at }) {
  if (!answer) return null;
  if (answer === ASKING) return html`<p role="status" class="dim">asking …</p>`;
  if (answer.choices) return html`<p role="status">Which cluster?
    ${answer.choices.map((name) => html`${" "}
      <a href=${askAddress(at.name, { ...at.values, cluster_id: name })}>${name}</a>`)}</p>`;
  if (answer.error) return html`<p role="alert" class="bigger">${answer.error}</p>`;
  const { data, meta } = answer, isObject = ([, value]) => typeof value === "object";
  const entries = Object.entries(data).filter(([, value]) => value !== null);
  return html`<section aria-label="Answer" aria-live="polite">
    <p class="small dim">answered in ${meta.duration_ms.toFixed(0)} ms</p>
    ${data.columns ? html`<${Table} columns=${data.columns} rows=${data.rows} />` : html`
      <${Facts} items=${entries.filter((each) => !isObject(each)).map(([name, value]) =>
        [spaced(name), String(value)])} />
      ${entries.filter(isObject).map(([name, value]) =>
        html`<h2>${spaced(name)}</h2><${Value} value=${value} />`)}`}
  </section>`;
}

function Value({ value }) {
  if (!Array.isArray(value)) return html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
  if (!value.length) return html`<p class="dim">none</p>`;
  if (typeof value[0] !== "object") return html`<p>${value.join(", ")}</p>`;
  const columns = [...new Set(value.flatMap((row) => Object.keys(row)))];
  const rows = value.map((row) => columns.map((name) => row[name]));
  return html`<${Table} columns=${columns} rows=${rows} />`;
}

function Table({ columns, rows }) {
  if (!rows.length) return html`<p class="dim">no rows</p>`;
  const isNumber = columns.map((_, i) =>
    rows.every((row) => row[i] == null || typeof row[i] === "number"));
  return html`<div class="wide" tabindex="0" role="region" aria-label="Rows"><table>
      <thead><tr>${columns.map((name, i) =>
        html`<th scope="col" class=${isNumber[i] ? "n" : ""}>${name}</th>`)}</tr></thead>
      <tbody>${rows.slice(0, MOST_ROWS).map((row) => html`<tr>${row.map((cell, i) =>
        html`<td class=${isNumber[i] ? "n" : classOf(cell)}>${textOf(cell)}</td>`)}</tr>`)}
      </tbody></table></div>
    <p class="small dim">${many(rows.length, "row")}
      ${rows.length > MOST_ROWS && `; the first ${MOST_ROWS} are shown, CSV has all`}</p>`;
}

const classOf = (cell) => textOf(cell).length > LONG ? "evidence" : "";
const textOf = (cell) => cell == null ? MISSING
  : typeof cell === "object" ? JSON.stringify(cell) : String(cell);
