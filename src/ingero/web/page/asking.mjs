// The questions of Echo's API: their names, their addresses, and the fields of their forms.
const TOOLS = "/api/v2/tools/";
export const SQL = "run_analysis";

export const shortName = (tool) => tool.name.split(".").at(-1);

export function toolsOf(api) {
  return Object.entries(api.paths)
    .filter(([path]) => path.startsWith(TOOLS) && path !== TOOLS + "list")
    .map(([path, item]) => ({ name: path.slice(TOOLS.length), ...item.post }));
}

// One address per question and values; with a format it answers as data.
export function askAddress(name, values = {}) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(given);
  return `/ask/${encodeURIComponent(name)}` + (query.size ? "?" + query : "");
}
export const withFormat = (url, format) =>
  url + (url.includes("?") ? "&" : "?") + "format=" + format;

// A schema, wherever it is kept in the document.
function resolve(api, schema) {
  const follow = (ref) => ref.slice(2).split("/").reduce((node, part) => node[part], api);
  while (schema?.$ref) schema = follow(schema.$ref);
  return schema ?? {};
}

// What a field holds, where it may also be left out.
function kindOf(api, schema) {
  const found = resolve(api, schema), choices = found.anyOf?.map((each) => resolve(api, each));
  const kind = choices?.find((each) => each.type !== "null") ?? found;
  const { description = kind.description, default: usual = kind.default } = found;
  return { ...kind, description, default: usual };
}

// The fields of a question, as { name, kind, isNeeded }.
export function fieldsOf(api, tool) {
  const schema = resolve(api, tool.requestBody.content["application/json"].schema);
  return Object.entries(schema.properties ?? {}).map(([name, each]) =>
    ({ name, kind: kindOf(api, each), isNeeded: (schema.required ?? []).includes(name) }));
}
