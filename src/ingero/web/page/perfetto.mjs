// The trace of an episode, given to Perfetto in another window. It stays in the browser: nothing is
// uploaded.
import { saveFile } from "./parts.mjs";
import { headers } from "./token.mjs";

const PERFETTO = "https://ui.perfetto.dev";
const ASK_EVERY_MS = 200, PATIENCE_MS = 60_000;
const CLOSED = "the window was closed";
const SILENT = `${PERFETTO} does not answer; save the trace and open it there`;

async function load(id) {
  const asked = { headers: headers(), cache: "no-store" };
  const reply = await fetch(`/api/v1/episodes/${encodeURIComponent(id)}/trace`, asked);
  if (reply.ok) return reply.arrayBuffer();
  const answer = await reply.json().catch(() => ({}));
  throw new Error(answer.error || `the answer had status ${reply.status}`);
}

// Both return what went wrong, or nothing.
export async function saveTrace(id) {
  try {
    saveFile([await load(id)], "application/json", `episode-${id}.trace.json`);
    return "";
  } catch (problem) { return problem.message; }
}

export async function openInPerfetto(id) {
  const opened = window.open(PERFETTO);  // first: browsers allow it only in answer to a click
  if (!opened) return "the browser did not open a window";
  try {
    const buffer = await load(id);
    await isReady(opened);
    opened.postMessage({ perfetto: { buffer, title: `Ingero episode ${id}` } }, PERFETTO);
    return "";
  } catch (problem) {
    opened.close();
    return problem.message;
  }
}

// Perfetto answers PING with PONG once it can take a trace. PING says nothing, so any origin may
// have it.
function isReady(opened) {
  return new Promise((done, failed) => {
    const end = (problem) => {
      clearInterval(asking);
      clearTimeout(waiting);
      removeEventListener("message", hear);
      problem ? failed(new Error(problem)) : done();
    };
    const hear = ({ source, origin, data }) => {
      if (source === opened && origin === PERFETTO && data === "PONG") end();
    };
    const ask = () => opened.closed ? end(CLOSED) : opened.postMessage("PING", "*");
    const asking = setInterval(ask, ASK_EVERY_MS);
    const waiting = setTimeout(() => end(SILENT), PATIENCE_MS);
    addEventListener("message", hear);
  });
}
