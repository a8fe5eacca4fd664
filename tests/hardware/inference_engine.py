"""A small real engine for a GPU machine without network: transformers' continuous batching.

A Llama of random weights generates with paged attention behind an aiohttp server that exports
vLLM's metric names. `--slow S` sleeps in every step, as a slow replica would.
Started as `python …/vllm serve random-1b --port N`, so that agents find it as they find vLLM.
"""

import argparse
import threading
import time

import torch
from aiohttp import web
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ingero.contract.exposition import Labels, counter, gauge, render

LABELS: Labels = (("engine", "0"), ("model_name", "random-1b"))


class Engine:
    """Counts the tokens that the model gives back; one step gives each running request a token."""

    def __init__(self, slow_s: float) -> None:
        config = LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, vocab_size=32000,
            num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=4096,
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).cuda().eval()
        model.set_attn_implementation("sdpa_paged")
        self.slow_s, self.running, self.steps, self.tokens, self.latency_s = slow_s, 0, 0, 0, 0.0
        self.manager = model.init_continuous_batching(
            generation_config=GenerationConfig(max_new_tokens=512, do_sample=False, eos_token_id=-1)
        )
        self.manager.start()
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        """Keep eight requests running and count what comes back."""
        last_s = time.monotonic()
        seen: dict[str, int] = {}
        while True:
            while self.running < 8:
                prompt = torch.randint(0, 32000, (64,)).tolist()
                self.manager.add_request(prompt, max_new_tokens=512, streaming=True)
                self.running += 1
            output = self.manager.get_result(timeout=1)
            if output is None:
                continue
            if self.slow_s:
                time.sleep(self.slow_s)
            new = len(output.generated_tokens) - seen.get(output.request_id, 0)
            seen[output.request_id] = len(output.generated_tokens)
            now_s = time.monotonic()
            self.tokens += new
            self.latency_s += (now_s - last_s) * self.running
            self.steps = self.tokens // 8
            last_s = now_s
            if output.is_finished():
                self.running -= 1
                seen.pop(output.request_id, None)

    async def page(self, _: web.Request) -> web.Response:
        """Return the metrics page."""
        gauges = {"num_requests_running": self.running, "num_requests_waiting": 0}
        counters = {
            "iteration_tokens_total_count": self.steps,
            "iteration_tokens_total_sum": self.tokens,
            "generation_tokens_total": self.tokens,
            "inter_token_latency_seconds_sum": self.latency_s,
            "inter_token_latency_seconds_count": self.tokens,
        }
        families = [gauge(f"vllm:{name}", "", [(LABELS, value)]) for name, value in gauges.items()]
        families += [
            counter(f"vllm:{name}", "", [(LABELS, value)]) for name, value in counters.items()
        ]
        return web.Response(body=render(families), content_type="text/plain")


async def healthy(_: web.Request) -> web.Response:
    """Say 200, as engines do while they hang."""
    return web.Response()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slow", type=float, default=0.0)
    given = parser.parse_args()
    engine = Engine(given.slow)
    app = web.Application()
    app.add_routes([web.get("/metrics", engine.page), web.get("/health", healthy)])
    web.run_app(app, host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
