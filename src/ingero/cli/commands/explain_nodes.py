"""`ingero explain --nodes`: the causal chains of many nodes, worst first."""

import msgspec

from ingero.cli.exit_status import FINE, SLOW
from ingero.cli.fanout.ask import ask_nodes
from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.fanout.report import report_problems, require_an_answer
from ingero.cli.show.chains import fix_lines, tagged
from ingero.cli.show.table import print_json, printable
from ingero.cli.show.wrap import on_screen
from ingero.contract.api_paths import NODE_CHAINS
from ingero.contract.chain import severity_order
from ingero.contract.node_api import ChainRow, Chains
from ingero.core.rowmerge import RowMerge
from ingero.transport.fanout.ask import decode_reply
from ingero.transport.fanout.client import NodeReply, Question

_decode_chains = msgspec.json.Decoder(Chains).decode


def ask_chains(options: FanoutOptions, since: str | None, as_json: bool) -> int:
    """Ask every node for its chains and print them all; returns the exit status."""
    merge = RowMerge()
    chains: list[ChainRow] = []

    def take(reply: NodeReply) -> None:
        decoded = decode_reply(reply, _decode_chains, merge)
        if decoded is not None:
            merge.answered += 1
            for chain in decoded.chains:
                chain.node = chain.node or reply.name
                chain.timeline = []
            chains.extend(decoded.chains)
            if decoded.truncated:
                merge.warnings.append(
                    f"node {reply.name}: only its newest chains were returned; shorten --since"
                )

    path = f"{NODE_CHAINS}?since={since}" if since else NODE_CHAINS
    result = ask_nodes(options, (Question(path), take))
    require_an_answer(merge, result)
    chains.sort(key=lambda chain: severity_order(chain.severity))
    if as_json:
        print_json([{"node": chain.node, **msgspec.to_builtins(chain)} for chain in chains])
    else:
        _print_chains(chains, merge.answered, len(options.nodes))
    return report_problems(options, merge, result) or (SLOW if chains else FINE)


def _print_chains(chains: list[ChainRow], answered: int, asked: int) -> None:
    nodes = f"{asked} node(s)" if answered == asked else f"{answered} of {asked} nodes"
    if not chains:
        print(f"no causal chains on {nodes}: nothing was slow with a cause we can see")
        return
    print(f"FLEET CAUSAL CHAINS - {len(chains)} chain(s) from {nodes}\n")
    for chain in chains:
        print(tagged(chain.severity, f" [{printable(chain.node)}] {printable(chain.summary)}"))
        print(on_screen(f"  Root cause: {printable(chain.root_cause)}", "    "))
        print("".join(f"{line}\n" for line in fix_lines(chain.recommendations)))
