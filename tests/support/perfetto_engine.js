// Runs Perfetto's own trace processor outside a browser: RPC bytes on standard input, its replies on standard output.
// Usage: node perfetto_engine.js FOLDER, where FOLDER holds engine_bundle.js and trace_processor.wasm.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const folder = process.argv[2];
const replies = [];
const port = { postMessage: (data) => replies.push(Buffer.from(data)) };
const scope = { location: { href: "file:///engine_bundle.js" } };
const say = (line) => process.stderr.write(line + "\n");
class XMLHttpRequest {  // asked for one file only, synchronously
  open() {}
  send() { this.response = fs.readFileSync(path.join(folder, "trace_processor.wasm")); }
}
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
// The bundle believes itself in a worker: no window, no process, an importScripts.
new Function("self", "process", "importScripts", "XMLHttpRequest", "console", bundle)(
  scope, undefined, () => {}, XMLHttpRequest, { log: say, warn: say, error: say });
scope.onmessage({ data: port });
setTimeout(() => {  // after the promises of its set-up
  port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) });
  process.stdout.write(Buffer.concat(replies));
}, 0);
