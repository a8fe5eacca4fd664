"""The worker of a small engine: a random Llama-like model that serves requests in one batch.

    python inference_worker.py STEPS [--tiny]

Requests join and leave between two steps (continuous batching): a prompt is read at once, and then
every step gives each request one token. On a GPU the steps are replays of one CUDA graph. Prints
the seconds of each step. A line on standard input sets the share of steps that work twice, and its
end ends the worker. STEPS gets three doubles per step: its end (monotonic), its seconds, and 1 if a
prompt was read in it. Needs PyTorch alone.
"""

import ctypes
import random
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

SLOTS = 16
PROMPT, ANSWER = (32, 256), (64, 512)  # tokens of a request, at least and at most
CPU_STEP_S = 0.1
STOP = -1.0  # between two steps: a process killed while it uses the GPU may harm others under MPS
SET_NAME, DIE_WITH_PARENT, SIGKILL = 15, 1, 9


@dataclass(frozen=True)
class Size:
    """The size of the model, and how many tokens a request can have."""

    width: int = 2048
    layers: int = 16
    heads: int = 16
    inner: int = 5632
    words: int = 32000
    length: int = 1024


TINY = Size(width=64, layers=2, heads=4, inner=128, words=256)


class Model:
    """Weights, the keys and values of all slots, and the state that a step changes in place."""

    def __init__(self, size: Size, device: torch.device) -> None:
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.size, self.device = size, device

        def random_matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, device=device, dtype=kind) * columns**-0.5

        width, inner = size.width, size.inner
        self.words, self.head = random_matrix(size.words, width), random_matrix(size.words, width)
        self.places = random_matrix(size.length, width)
        shapes = ((3 * width, width), (width, width), (2 * inner, width), (width, inner))
        self.blocks = [[random_matrix(*shape) for shape in shapes] for _ in range(size.layers)]
        cache = (size.layers, 2, SLOTS, size.heads, size.length, width // size.heads)
        self.cache = torch.zeros(cache, device=device, dtype=kind)
        self.tokens = torch.zeros(SLOTS, dtype=torch.long, device=device)
        self.positions = torch.zeros(SLOTS, dtype=torch.long, device=device)
        self.slots = torch.arange(SLOTS, device=device)
        self.columns = torch.arange(size.length, device=device)

    def read_prompt(self, slot: int, prompt: Tensor) -> None:
        """Fill the cache of a slot, and put its next token in place."""
        count = len(prompt)
        x = (self.words[prompt] + self.places[:count])[None]
        for layer, weights in enumerate(self.blocks):
            q, k, v = self._heads(x, weights[0])
            self.cache[layer, 0, slot, :, :count] = k[0]
            self.cache[layer, 1, slot, :, :count] = v[0]
            x = self._rest(x, scaled_dot_product_attention(q, k, v, is_causal=True), weights)
        self.tokens[slot] = (x[0, -1] @ self.head.t()).argmax()
        self.positions[slot] = count

    def decode(self) -> Tensor:
        """Return the next token of every slot; nothing but the cache is changed."""
        x = (self.words[self.tokens] + self.places[self.positions])[:, None]
        seen = (self.columns <= self.positions[:, None])[:, None, None]
        for layer, weights in enumerate(self.blocks):
            q, k, v = self._heads(x, weights[0])
            keys, values = self.cache[layer, 0], self.cache[layer, 1]
            keys[self.slots, :, self.positions] = k[:, :, 0]
            values[self.slots, :, self.positions] = v[:, :, 0]
            mixed = scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = self._rest(x, mixed, weights)
        return (x[:, 0] @ self.head.t()).argmax(-1)

    def advance(self) -> None:
        """Decode, and move every slot on."""
        self.tokens.copy_(self.decode())
        self.positions.add_(1).clamp_(max=self.size.length - 1)

    def _heads(self, x: Tensor, qkv: Tensor) -> list[Tensor]:
        batch, count, width = x.shape
        shape = (batch, count, self.size.heads, width // self.size.heads)
        parts = (rms_norm(x, (width,)) @ qkv.t()).chunk(3, -1)
        return [part.view(shape).transpose(1, 2) for part in parts]

    def _rest(self, x: Tensor, mixed: Tensor, weights: list[Tensor]) -> Tensor:
        batch, count, width = x.shape
        x = x + mixed.transpose(1, 2).reshape(batch, count, width) @ weights[1].t()
        gate, up = (rms_norm(x, (width,)) @ weights[2].t()).chunk(2, -1)
        return x + (silu(gate) * up) @ weights[3].t()


def captured(work):
    """Return work as the replay of a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Batch:
    """The requests that are running; a new one follows each that ends."""

    def __init__(self, model: Model) -> None:
        self.model, self.left = model, [0] * SLOTS

    def fill(self) -> bool:
        """Give every free slot a request; returns whether there was one."""
        free = [slot for slot, left in enumerate(self.left) if left <= 0]
        for slot in free:
            prompt = torch.randint(self.model.size.words, (random.randint(*PROMPT),))
            self.model.read_prompt(slot, prompt.to(self.model.device))
            self.left[slot] = random.randint(*ANSWER)
        return bool(free)

    def take_step(self) -> None:
        self.model.tokens.tolist()  # waits for the GPU, as engines do to send the tokens
        self.left = [left - 1 for left in self.left]


def die_with_parent() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(SET_NAME, b"VLLM::Worker", 0, 0, 0)
    libc.prctl(DIE_WITH_PARENT, SIGKILL, 0, 0, 0)


def main() -> None:
    die_with_parent()
    tiny = "--tiny" in sys.argv
    device = torch.device("cpu" if tiny else "cuda:0")
    slow = [0.0]

    def listen() -> None:
        for line in sys.stdin:
            slow[0] = float(line)
        slow[0] = STOP

    threading.Thread(target=listen, daemon=True).start()
    with torch.inference_mode(), Path(sys.argv[1]).open("wb", buffering=0) as steps:
        serve(Batch(Model(TINY if tiny else Size(), device)), slow, steps)


def serve(batch: Batch, slow: list[float], steps) -> None:
    model, owed = batch.model, 0.0
    batch.fill()
    is_gpu = model.device.type == "cuda"
    advance = captured(model.advance) if is_gpu else model.advance
    decode = captured(model.decode) if is_gpu else model.decode
    while slow[0] != STOP:
        began = time.monotonic()
        has_read = batch.fill()
        advance()
        owed += slow[0]
        if owed >= 1.0:  # the GPU works once more, for nothing
            owed -= 1.0
            decode()
        batch.take_step()
        ended = time.monotonic()
        if not is_gpu:  # a pace that a busy machine can keep
            time.sleep(max(CPU_STEP_S * (1 + slow[0]) - (ended - began), 0))
            ended = time.monotonic()
        steps.write(struct.pack("<3d", ended, ended - began, has_read))
        sys.stdout.write(f"{ended - began:.6f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
