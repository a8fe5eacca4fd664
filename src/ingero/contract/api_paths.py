"""The path of every HTTP endpoint, as servers route it and clients request it.

Braces mark what a client fills in.
"""

from typing import Final

# OTLP over HTTP: served by Fleet and Echo
OTLP_METRICS: Final = "/v1/metrics"
OTLP_TRACES: Final = "/v1/traces"
OTLP_LOGS: Final = "/v1/logs"

# Any service
HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"
PROMETHEUS: Final = "/metrics"  # what a Prometheus server scrapes
MCP: Final = "/mcp"
PAGE: Final = "/"
PAGE_FILE: Final = "/static/{name}"
READY_ENGINE: Final = "/ready/engine"  # agent: whether the inference engine on ?port=N is ready

# Fleet
FLEET_THRESHOLD: Final = "/api/v1/threshold"
FLEET_STATUS: Final = "/api/v1/status"
FLEET_LIVE: Final = "/api/v1/live"  # a stream, `contract/live.py`
FLEET_NODE: Final = "/api/v1/node"
FLEET_AGENTS_PAGE: Final = "/agents"
FLEET_JOB_PAGE: Final = "/job/{id:path}"
FLEET_NODE_PAGE: Final = "/node/{id:path}"
FLEET_EPISODE_PAGE: Final = "/episode/{id:path}"
FLEET_SILENCES: Final = "/api/v1/silences"
FLEET_SILENCES_LIFT: Final = "/api/v1/silences/lift"
FLEET_LIMITS: Final = "/api/v1/limits"
FLEET_EPISODES: Final = "/api/v1/episodes"
FLEET_EPISODE: Final = "/api/v1/episodes/{episode}"
FLEET_EPISODE_INPUTS: Final = "/api/v1/episodes/{episode}/inputs"
FLEET_EPISODE_TRACE: Final = "/api/v1/episodes/{episode}/trace"
FLEET_AUTHORITY: Final = "/api/v1/authority"
FLEET_ENROL: Final = "/api/v1/enrol"
FLEET_ENROL_RENEW: Final = "/api/v1/enrol/renew"
FLEET_ENROL_LEAVE: Final = "/api/v1/enrol/leave"
FLEET_ENROL_NODES: Final = "/api/v1/enrol/nodes"
FLEET_DEBUG_CLUSTERS: Final = "/debug/clusters"
FLEET_DEBUG_SCORES: Final = "/debug/scores"
FLEET_DEBUG_SERVICEZ: Final = "/debug/servicez"
FLEET_DEBUG_TRACEZ: Final = "/debug/tracez"

# Node: what `ingero dashboard` serves and commands ask of many nodes
NODE_ROOT: Final = "/api/"  # everything below needs the token
NODE_TIME: Final = "/api/v1/time"
NODE_OVERVIEW: Final = "/api/v1/overview"
NODE_OPS: Final = "/api/v1/ops"
NODE_CHAINS: Final = "/api/v1/chains"
NODE_SNAPSHOTS: Final = "/api/v1/snapshots"
NODE_CAPABILITIES: Final = "/api/v1/capabilities"
NODE_GRAPH_METRICS: Final = "/api/v1/graph-metrics"
NODE_GRAPH_EVENTS: Final = "/api/v1/graph-events"
NODE_QUERY: Final = "/api/v1/query"

# Echo
ECHO_VERSIONS: Final = "/api/versions"
ECHO_RETIRED: Final = "/api/v1/{path:path}"  # answers 410 Gone and names the current version
ECHO_ROOT: Final = "/api/v2"
ECHO_TOOLS_LIST: Final = "/api/v2/tools/list"
ECHO_TOOL: Final = "/api/v2/tools/{name}"
ECHO_SQL: Final = "/api/v2/sql"
ECHO_OPENAPI: Final = "/api/v2/openapi.json"
ECHO_HEALTH: Final = "/api/v2/health"
ECHO_ASK_PAGE: Final = "/ask"
ECHO_ASK: Final = "/ask/{name}"  # a page, or with `format` an answer
ECHO_WHOAMI: Final = "/api/v2/whoami"
