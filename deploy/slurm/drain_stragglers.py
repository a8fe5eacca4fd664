#!/usr/bin/env python3
"""Drain the nodes that Fleet names as stragglers, within limits that you set.

A dry run by default. Ingero itself never touches a node: this program is yours to run, for example
from cron on the machine of slurmctld. It needs Python, `scontrol`, and a token that may read Fleet.

A node is drained only if all of this holds:
  - an open episode of state `straggler` with a confidence of at least --confidence,
  - of class compute, host or network (--classes),
  - older than --after seconds, not silenced, and not about an inference engine,
  - Slurm knows the node and it is not drained or down already,
  - at most --max-nodes nodes, and --max-percent of all nodes, are drained by this program.
Nodes are never resumed: that is a decision for people.
"""

import argparse
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.request

MARK = "ingero: "  # the beginning of every reason of ours
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OUT_OF_SERVICE = ("DRAIN", "DOWN", "FAIL")


def candidates(status, arguments, now):
    """Return (node, reason) of every verdict that allows draining, the most confident first."""
    found = {}
    for cluster in status["clusters"]:
        if arguments.cluster and cluster["cluster_id"] != arguments.cluster:
            continue
        for verdict in cluster.get("verdicts", []):
            confidence = verdict.get("confidence") or 0.0
            allowed = (
                verdict["state"] == "straggler"
                and confidence >= arguments.confidence
                and verdict.get("class") in arguments.classes
                and not verdict.get("engine")
                and not verdict.get("silenced")
                and now - verdict["since"] >= arguments.after
                and NODE.fullmatch(verdict["node"])
            )
            if allowed and confidence > found.get(verdict["node"], (0.0, ""))[0]:
                found[verdict["node"]] = (confidence, reason(verdict, confidence))
    ranked = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return [(node, text) for node, (_, text) in ranked]


def reason(verdict, confidence):
    """Return the reason that `sinfo -R` shows."""
    loss = f", job loses {verdict['loss']:.0%}" if verdict.get("loss") else ""
    text = f"{MARK}{verdict['class']} straggler{loss}, {confidence:.0%} sure"
    text += f", episode {verdict['episode']}"
    return re.sub(r"[^A-Za-z0-9 .,:%_-]", "_", text)[:200]


def choose(wanted, nodes, max_nodes, max_percent):
    """Return the nodes to drain now; `nodes` has the state and reason of each in Slurm."""
    ours = [name for name, (_, why) in nodes.items() if why.startswith(MARK)]
    room = min(max_nodes, int(len(nodes) * max_percent / 100)) - len(ours)
    free = [
        (node, why)
        for node, why in wanted
        if node in nodes and not any(word in nodes[node][0] for word in OUT_OF_SERVICE)
    ]
    return free[: max(0, room)]


def slurm_nodes():
    """Return state and reason of every node that Slurm knows."""
    command = ["scontrol", "--oneliner", "show", "node"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    found = {}
    for line in shown.stdout.splitlines():
        name = re.search(r"\bNodeName=(\S+)", line)
        state = re.search(r"\bState=(\S+)", line)
        why = re.search(r"\bReason=(.*?)(?: \[|$)", line)
        if name and state:
            found[name[1]] = (state[1].upper(), why[1] if why else "")
    return found


def ask_fleet(arguments):
    """Return what Fleet says of its clusters."""
    request = urllib.request.Request(f"{arguments.fleet.rstrip('/')}/api/v1/status")
    token = os.environ.get("INGERO_FLEET_TOKEN", "")
    if arguments.token_file:
        with open(arguments.token_file) as file:
            token = file.read().strip()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = None
    if request.type == "https":
        context = ssl.create_default_context(cafile=arguments.ca_cert)
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return json.load(answer)


def parse(argv):
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--fleet", default="http://127.0.0.1:8080", help="address of Fleet's API")
    option("--token-file", help="file with a token that may read; else $INGERO_FLEET_TOKEN")
    option("--ca-cert", help="authority that signed Fleet's certificate")
    option("--cluster", help="only this cluster")
    option("--drain", action="store_true", help="drain for real; without it only print")
    option("--max-nodes", type=int, default=1, help="most nodes drained by this program (1)")
    option("--max-percent", type=float, default=5.0, help="and their largest share (5)")
    option("--confidence", type=float, default=0.9, help="least confidence of a verdict (0.9)")
    option("--after", type=float, default=120.0, help="least age of an episode in seconds (120)")
    option("--classes", type=lambda text: text.split(","), default=["compute", "host", "network"])
    return parser.parse_args(argv)


def main(argv=None):
    """Ask Fleet and Slurm once; drain what may be drained."""
    arguments = parse(argv)
    wanted = candidates(ask_fleet(arguments), arguments, time.time())
    chosen = choose(wanted, slurm_nodes(), arguments.max_nodes, arguments.max_percent)
    for node, why in wanted:
        if (node, why) not in chosen:
            print(f"left alone: {node} ({why}): unknown, out of service, or over the limits")
    for node, why in chosen:
        if not arguments.drain:
            print(f"dry run, would drain {node}: {why}")
            continue
        command = ["scontrol", "update", f"nodename={node}", "state=drain", f"reason={why}"]
        subprocess.run(command, check=True)
        print(f"drained {node}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
