// The trace of an episode, given to Perfetto in another window. It stays in the browser: nothing is uploaded.
import { headers } from "./token.mjs";

export const PERFETTO = "https://ui.perfetto.dev";
const ASK_EVERY_MS = 200, PATIENCE_MS = 60_000;

async function load(id) {
  const reply = await fetch(`/api/v1/episodes/${encodeURIComponent(id)}/trace`, { headers: headers(), cache: "no-store" });
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error || `the answer had status ${reply.status}`);
  return reply.arrayBuffer();
}

// Both return what went wrong, or nothing.
export async function saveTrace(id) {
  try {
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([await load(id)], { type: "application/json" }));
    anchor.download = `episode-${id}.trace.json`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
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

// Perfetto answers PING with PONG once it can take a trace. PING says nothing, so that any origin may have it.
function isReady(opened) {
  return new Promise((done, failed) => {
    const end = (then) => { clearInterval(asking); clearTimeout(waiting); removeEventListener("message", hear); then(); };
    const hear = (event) => { if (event.source === opened && event.origin === PERFETTO && event.data === "PONG") end(done); };
    const asking = setInterval(() => opened.closed ? end(() => failed(new Error("the window was closed"))) : opened.postMessage("PING", "*"), ASK_EVERY_MS);
    const waiting = setTimeout(() => end(() => failed(new Error(`${PERFETTO} does not answer; save the trace and open it there`))), PATIENCE_MS);
    addEventListener("message", hear);
  });
}
