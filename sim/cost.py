"""How long one engine step takes, from what it computes.

    T = t0 + (tw^4 + (cg (P + D))^4)^(1/4) + ca A + cd D + ck K + d0 + d1 S

    P  prompt tokens computed        D  sequences that decode one token       S  sequences in the step, P's and D's
    A  attended pairs of the prompts (each token with all before it and itself)       K  KV tokens the decodes read

The first five terms are the kernels, the last two the engine around them. Before it, each request spends `front_s` in
the server's front end (HTTP, tokens, queues between processes), which keeps no step waiting. A profile is `calibrated`
when d0 and d1 were fitted to a real server on that hardware; the others rank policies, they do not predict latency.
"""

import math
from dataclasses import dataclass, field

_FREE_FRACTION = 0.92  # vLLM's default share of GPU memory
_RUNTIME_BYTES = 4 * 10**9  # activations, graphs and communication buffers of one GPU, roughly
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one kind of replica. Times in seconds per unit."""

    name: str
    model: str
    gpu: str
    gpus: int
    t0_s: float
    tw_s: float
    cg_s: float
    ca_s: float
    cd_s: float
    ck_s: float
    d0_s: float = 0.0
    d1_s: float = 0.0
    front_s: float = 0.0
    """Seconds from a request's arrival to the engine; not part of a step, add it to every time to first token."""
    gpu_bytes: int = 0
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    reported_tokens: int = 0
    calibrated: bool = False
    source: str = field(default="", compare=False)

    def step_s(
        self, *, prefill_tokens: int, prefill_pairs: int, decode_sequences: int, decode_kv_tokens: int, sequences: int
    ) -> float:
        """Seconds of one step."""
        gemm = self.cg_s * (prefill_tokens + decode_sequences)
        return (
            self.t0_s
            + math.sqrt(math.hypot(self.tw_s**2, gemm**2))
            + self.ca_s * prefill_pairs
            + self.cd_s * decode_sequences
            + self.ck_s * decode_kv_tokens
            + self.d0_s
            + self.d1_s * sequences
        )

    @property
    def capacity_tokens(self) -> int:
        """KV tokens that fit beside the weights: what a real server reported, else a rough sum; 0 when not known."""
        if self.reported_tokens or not self.kv_bytes_per_token:
            return self.reported_tokens
        room = self.gpus * (int(self.gpu_bytes * _FREE_FRACTION) - _RUNTIME_BYTES) - self.weight_bytes
        return max(0, room // self.kv_bytes_per_token)


_MODELS = {  # weights in bf16, KV bytes per token in bf16
    "llama-3.1-8b": (16_060_000_000, 131_072),
    "qwen3-8b": (16_380_000_000, 147_456),
    "qwen3-32b": (65_520_000_000, 262_144),
    "llama-3.1-70b": (141_110_000_000, 327_680),
}
_GPU_GIB = {
    "h100": 80,
    "a100": 80,
    "l40s": 48,
    "h200": 141,
    "b200": 180,
    "b300": 270,
    "rtx-pro-6000": 96,
    "rtx-4090": 24,
}
_REPORTED_TOKENS = {  # by servers of vLLM 0.12 to 0.19 at their default share of GPU memory
    "llama-3.1-8b-rtx-4090": 2588 * 16,
    "qwen3-32b-h100-x2": 307_328,
    "llama-3.1-70b-h100-x4": 461_376,
}
_FRONT_S = 0.0156  # BLIS's fit of vLLM's time per request before its queue (inference-sim, defaults.yaml, alpha 0)
_KERNELS = "kernel times fitted to AIConfigurator's database (3-7 %), engine overhead assumed, front end from BLIS"
_FITTED = "kernel times from AIConfigurator, engine overhead fitted to its own clock in a real vLLM run"
_ROOFLINE = "kernel times from a roofline (1,008 GB/s, 175 TFLOP/s), engine overhead fitted to a real vLLM run's clock"

# model, gpu, gpus, t0 ms, tw ms, cg us/token, ca ns/pair, cd us/sequence, ck ns/KV token, d0 ms, d1 us, source
_ROWS = (
    ("llama-3.1-8b", "h100", 1, 2.05, 4.57, 19.6, 0.81, 6.7, 41.3, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "a100", 1, 7.28, 4.57, 55.3, 2.90, 6.2, 83.2, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "l40s", 1, 2.41, 20.64, 66.7, 3.10, 26.3, 188.4, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "h200", 1, 1.47, 3.63, 19.8, 0.82, 6.8, 29.5, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "b200", 1, 2.13, 1.40, 9.5, 0.41, 1.2, 18.0, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "b300", 1, 2.20, 1.30, 8.7, 0.33, 1.5, 18.3, 2.0, 20.0, _KERNELS),
    ("llama-3.1-8b", "rtx-pro-6000", 1, 6.83, 4.38, 37.0, 1.75, 0.4, 87.3, 2.83, 13.3, _FITTED),
    ("llama-3.1-8b", "rtx-4090", 1, 1.0, 16.0, 92.0, 4.0, 1.0, 130.0, 1.5, 45.0, _ROOFLINE),
    ("qwen3-8b", "h100", 1, 4.66, 2.28, 18.3, 0.94, 2.4, 46.4, 2.0, 20.0, _KERNELS),
    ("qwen3-8b", "a100", 1, 8.85, 3.32, 54.6, 3.31, 0.4, 93.0, 2.0, 20.0, _KERNELS),
    ("qwen3-8b", "l40s", 1, 5.27, 18.48, 65.8, 3.54, 23.2, 211.9, 2.0, 20.0, _KERNELS),
    ("qwen3-32b", "h100", 2, 7.65, 6.69, 46.8, 1.77, 4.8, 42.4, 0.56, 65.0, _FITTED),
    ("qwen3-32b", "a100", 2, 18.99, 6.79, 125.6, 5.85, 0.8, 88.8, 2.0, 20.0, _KERNELS),
    ("qwen3-32b", "rtx-pro-6000", 2, 18.49, 6.31, 106.5, 6.0, 0.0, 88.1, 2.0, 20.0, _KERNELS),
    ("qwen3-32b", "h200", 1, 4.76, 15.23, 86.2, 3.43, 10.9, 59.7, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "h100", 4, 6.86, 8.98, 59.4, 1.12, 11.2, 26.9, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "h100", 8, 8.34, 1.98, 36.7, 0.51, 0.0, 13.9, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "a100", 4, 18.73, 10.21, 152.4, 3.65, 6.0, 58.1, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "a100", 8, 13.36, 4.69, 98.2, 1.80, 0.0, 28.2, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "h200", 2, 2.21, 19.25, 105.0, 2.05, 13.1, 36.9, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "h200", 4, 6.48, 6.19, 58.3, 1.03, 4.9, 19.2, 2.0, 20.0, _KERNELS),
    ("llama-3.1-70b", "b200", 2, 12.60, 2.08, 47.1, 1.14, 0.0, 23.0, 2.0, 20.0, _KERNELS),
)


def _profile(row: tuple[str, str, int, float, float, float, float, float, float, float, float, str]) -> Profile:
    model, gpu, gpus, t0_ms, tw_ms, cg_us, ca_ns, cd_us, ck_ns, d0_ms, d1_us, source = row
    weight_bytes, kv_bytes = _MODELS[model]
    name = f"{model}-{gpu}" + (f"-x{gpus}" if gpus > 1 else "")
    return Profile(
        name=name,
        model=model,
        gpu=gpu,
        gpus=gpus,
        t0_s=t0_ms / 1e3,
        tw_s=tw_ms / 1e3,
        cg_s=cg_us / 1e6,
        ca_s=ca_ns / 1e9,
        cd_s=cd_us / 1e6,
        ck_s=ck_ns / 1e9,
        d0_s=d0_ms / 1e3,
        d1_s=d1_us / 1e6,
        front_s=_FRONT_S if source is _KERNELS else 0.0,
        gpu_bytes=_GPU_GIB[gpu] * _GIB,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes,
        reported_tokens=_REPORTED_TOKENS.get(name, 0),
        calibrated=source is not _KERNELS,
        source=source,
    )


PROFILES: dict[str, Profile] = {profile.name: profile for profile in map(_profile, _ROWS)}
DEFAULT_PROFILE = "llama-3.1-8b-h100"
