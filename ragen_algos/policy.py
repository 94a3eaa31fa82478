"""``LanguagePolicy``: a causal language model, its tokenizer and its chat template, as one object.

Token ids go in and token ids come out. A conversation is never rendered twice: the template is taken apart once into
the pieces around the messages, and each new message is tokenised on its own between those pieces. What the model
sampled is therefore never re-encoded, and text inside a message can never turn into a control token.

Simplification: every message is tokenised apart from the template pieces around it, so a tokenizer that would merge
characters across that border gives slightly different (always consistent) ids than one rendering of the whole chat.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import modeling_utils
from transformers.utils import logging as hf_logging

from ragen_algos.trajectory import Batch

TINY = ("tiny-mid", "tiny-full")
"""Names of the embedded checkpoints."""

_CARD = "ragen_policy.json"
_VIEW_KEYS = ("prompt", "view", "reasoning")
"""What a policy may say about how it wants to see a game. A downloaded checkpoint must not choose the game."""
_PLAIN_TEMPLATE = (
    "{{ bos_token }}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token if m['role'] == 'assistant' else '' }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
# Text that no template transforms and that no template contains.
_MARKS = ("QZXSYSTEMQZX", "QZXUSERQZX", "QZXREPLYQZX", "QZXNEXTQZX")


class LanguagePolicy:
    """A causal language model that plays turns.

    Args:
        model: Any Hugging Face causal LM.
        tokenizer: Its fast tokenizer. Without a chat template a plain ``role: text`` one is used.
        name: Shown in results.
        env_kwargs: How the model wants to see a game (``{"prompt": "compact"}`` for the embedded ones).
        max_new_tokens: Sampled tokens per turn, at most.
        tiny: One of the embedded models or trained from one: computes in float32 everywhere, on the CPU unless told
            otherwise.
        half: Compute in bfloat16. The weights stay float32: in bfloat16 a step of a usual learning rate is smaller
            than the distance between two neighbouring weights, and training would silently do nothing.

    Raises:
        ValueError: ``env_kwargs`` other than ``prompt``, ``view`` and ``reasoning``; a tokenizer or template that
            cannot be used; a model that does not attend to its whole context.
    """

    primed: str
    """What the template has already written of every reply: ``<think>`` or nothing."""
    stop_ids: frozenset[int]
    """Any of these tokens ends a reply."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        env_kwargs: dict[str, Any] | None = None,
        max_new_tokens: int = 400,
        tiny: bool = False,
        half: bool = False,
    ) -> None:
        unknown = sorted(set(env_kwargs or {}) - set(_VIEW_KEYS))
        if unknown:
            raise ValueError(f"a policy may choose {', '.join(_VIEW_KEYS)} of an environment, not {unknown}")
        _check_attention(model.config)
        self.model = model.eval()  # Dropout would make log-probabilities at sampling and at training differ.
        self.tokenizer = tokenizer
        self.name = name
        self.env_kwargs = dict(env_kwargs or {})
        self.max_new_tokens = max_new_tokens
        self.tiny, self.half = tiny, half
        # The few models that cannot leave out logits compute them all.
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._keeps_mask = hasattr(modeling_utils, "slice_logits_to_keep")
        self._take_template_apart()

    # --- loading and saving ---------------------------------------------------------------------------------------

    @staticmethod
    def load(name: str, *, device: str = "auto") -> LanguagePolicy:
        """A policy by name.

        Args:
            name: ``tiny-mid``, ``tiny-full``, a checkpoint folder, or ``hf:NAME_OR_PATH``.
            device: ``auto`` (CUDA if there is one, for models that are not tiny), ``cpu`` or ``cuda``. Weights are
                float32; on CUDA, models that are not tiny compute in bfloat16.

        Raises:
            ValueError: no such policy, or no such device.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {device!r}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda was asked for, but this torch sees no CUDA device")
        if name in TINY:
            path: str | Path = Path(__file__).parent / "tiny" / name
        elif name.startswith("hf:"):
            path = name.removeprefix("hf:")
        else:
            path = Path(name)
            if not (path / "config.json").is_file():
                raise ValueError(
                    f"no policy {name!r}: expected {', '.join(TINY)}, a checkpoint folder with config.json, "
                    "or hf:NAME_OR_PATH"
                )
        card = Path(path) / _CARD
        settings = json.loads(card.read_text()) if card.is_file() else {}
        unknown = sorted(set(settings) - {"env_kwargs", "max_new_tokens", "tiny"})
        if unknown:
            raise ValueError(f"{name}: unknown settings {unknown} in {_CARD}")
        tiny = bool(settings.get("tiny"))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() and not tiny else "cpu"
        # AutoTokenizer would replace a word-level tokenizer by the one usual for the architecture; what we saved
        # ourselves is loaded as it is.
        loader = PreTrainedTokenizerFast if card.is_file() else AutoTokenizer
        tokenizer = loader.from_pretrained(path, trust_remote_code=False)
        with _progress_bars(not tiny):
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)
        half = device == "cuda" and not tiny
        return LanguagePolicy(model.to(device), tokenizer, name=name, half=half, **settings)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), tokenizer and settings; :meth:`load` reads the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _progress_bars(not self.tiny):
            self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        settings = {"env_kwargs": self.env_kwargs, "max_new_tokens": self.max_new_tokens, "tiny": self.tiny}
        (folder / _CARD).write_text(json.dumps(settings, indent=1) + "\n")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def context(self) -> float:
        """Longest sequence the model was made for, in tokens."""
        longest = getattr(self.model.config, "max_position_embeddings", None)
        return math.inf if longest is None else longest

    # --- text to tokens -------------------------------------------------------------------------------------------

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of the opening messages (an optional system message and a user message), up to the reply.

        Raises:
            ValueError: other roles, or another order.
        """
        roles = [m["role"] for m in messages]
        if roles == ["user"]:
            before, after = self._user_only
            return [*before, *self._text_ids(messages[0]["content"]), *after]
        if roles != ["system", "user"]:
            raise ValueError(f"an episode opens with an optional system and one user message, got roles {roles}")
        system, user = messages[0]["content"], messages[1]["content"]
        if self._system_user is None:
            before, after = self._user_only
            return [*before, *self._text_ids(f"{system}\n\n{user}"), *after]
        before, between, after = self._system_user
        return [*before, *self._text_ids(system), *between, *self._text_ids(user), *after]

    def observation_ids(self, text: str, *, stopped: bool) -> list[int]:
        """Ids that follow a reply: its end (unless the model sampled the stop token itself), the user message, and
        the opening of the next reply."""
        close, before, after = self._next_turn
        return [*([] if stopped else close), *before, *self._text_ids(text), *after]

    def reply_ids(self, text: str) -> list[int]:
        """Ids of a reply written by someone else (a demonstration, a transcript), without the stop token."""
        return self._text_ids(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without the stop token."""
        kept = [i for i in ids if i not in self.stop_ids]
        # "Cleaning up" would move the spaces of what was said.
        text: str = self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _text_ids(self, text: str) -> list[int]:
        """Ids of plain text in which nothing counts as a control token."""
        backend = self.tokenizer.backend_tokenizer
        before = backend.encode_special_tokens
        backend.encode_special_tokens = True
        try:
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        finally:
            backend.encode_special_tokens = before
        # A vocabulary whose words include the control tokens (word-level ones) would still map them.
        return [self._harmless if i in self._control_ids else i for i in ids]

    def _template_ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _take_template_apart(self) -> None:
        tokenizer = self.tokenizer
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-sequence token")
        unknown = tokenizer.unk_token_id
        self._harmless = unknown if unknown is not None else self._template_ids("?")[0]
        system, user, reply, following = _MARKS
        template = tokenizer.chat_template or _PLAIN_TEMPLATE

        def render(*messages: tuple[str, str]) -> str:
            chat = [{"role": role, "content": content} for role, content in messages]
            text: str = tokenizer.apply_chat_template(
                chat, chat_template=template, tokenize=False, add_generation_prompt=True
            )
            return text

        def cut(text: str, *marks: str) -> list[str]:
            pieces = []
            for mark in marks:
                head, found, text = text.partition(mark)
                if not found:
                    raise ValueError("the chat template does not keep the messages as they are")
                pieces.append(head)
            return [*pieces, text]

        before, after = cut(render(("user", user)), user)
        self._user_only = self._template_ids(before), self._template_ids(after)
        self._system_user: tuple[list[int], list[int], list[int]] | None
        try:
            a, b, c = cut(render(("system", system), ("user", user)), system, user)
            self._system_user = self._template_ids(a), self._template_ids(b), self._template_ids(c)
        except Exception:  # Templates without a system role raise an error of their own: fold it into the user message.
            self._system_user = None
        _, _, between, last = cut(
            render(("user", user), ("assistant", reply), ("user", following)), user, reply, following
        )
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special} | {tokenizer.eos_token_id}
        # Some templates put a space before the token that ends a reply.
        ids = next(
            (ids for text in (between, between.lstrip()) if (ids := self._template_ids(text)) and ids[0] in special),
            [tokenizer.eos_token_id, *self._template_ids(between)],
        )
        self._next_turn = ids[:1], ids[1:], self._template_ids(last)
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        more = configured if isinstance(configured, list) else [configured]
        self.stop_ids = frozenset(i for i in (ids[0], tokenizer.eos_token_id, *more) if i is not None)
        self._control_ids = frozenset(special | self.stop_ids)
        # Some templates open the thinking themselves; a parser must see it opened.
        self.primed = "<think>" if last.rstrip().endswith("<think>") else ""

    # --- log-probabilities ----------------------------------------------------------------------------------------

    def precision(self) -> Any:
        """The context in which the model is called."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half)

    def logits(self, ids: torch.Tensor, attention: torch.Tensor, keep: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Raw logits after some tokens only: with a large vocabulary they are what fills the memory.

        Args:
            ids: [N, L] on the policy's device.
            attention: [N, P + L] with the ``P`` columns that are in the cache already.
            keep: [C] column indices, the same for all rows, or [N, L] bool.
            cache: Further arguments of the model.

        Returns:
            [N, C, V], or [M, V] for the ``M`` true entries of a mask.
        """
        # Positions from the mask: rows may be padded on either side and have gaps.
        positions = (attention.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        masked = keep.dtype == torch.bool
        exact = masked and self._keeps_logits and self._keeps_mask
        # Without help from transformers: every column that any row needs.
        asked = keep.any(0).nonzero().squeeze(1) if masked and not exact else keep
        keyword = {"logits_to_keep": asked} if self._keeps_logits else {}
        with self.precision():
            out = self.model(
                input_ids=ids,
                attention_mask=attention,
                position_ids=positions,
                **{"use_cache": False, **keyword, **cache},
            )
        logits: torch.Tensor = out.logits
        if exact:
            return logits.reshape(-1, logits.shape[-1])
        if not self._keeps_logits:
            logits = logits[:, asked]
        return logits[keep[:, asked]] if masked else logits

    def log_probs(
        self, batch: Batch, *, with_entropy: bool = False, entropy_gradient: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities of the sampled tokens at the batch's temperature, in float32.

        Returns:
            ``[N, L]`` log-probabilities and, if asked for, ``[N, L]`` entropies of the distributions that the tokens
            were drawn from, in nats; both 0 where nothing was sampled.
        """
        ids, attention = batch.ids.to(self.device), batch.attention_mask.to(self.device)
        sampled = batch.loss_mask.to(self.device)
        # The logits of column t - 1 score the token of column t.
        before = torch.nn.functional.pad(sampled[:, 1:], (0, 1))
        logits = self.logits(ids, attention, before)
        # Only now, on [M, V] for the M sampled tokens, in float32: a bfloat16 log-softmax is off by up to .04 nats.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        every = torch.log_softmax(logits / batch.temperature, -1)
        logp = every.new_zeros(ids.shape)
        logp[sampled] = every.gather(1, ids[sampled].unsqueeze(1)).squeeze(1)
        if not with_entropy:
            return logp, None
        entropy = every.new_zeros(ids.shape)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
            finite = every.clamp(min=torch.finfo(every.dtype).min)  # 0 * -inf would be NaN
            entropy[sampled] = -(every.exp() * finite).sum(-1)
        return logp, entropy


@contextlib.contextmanager
def _progress_bars(wanted: bool) -> Iterator[None]:
    """transformers' own progress bars, which say nothing where a model takes milliseconds to load."""
    hide = not wanted and hf_logging.is_progress_bar_enabled()
    if hide:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            hf_logging.enable_progress_bar()


def _check_attention(config: Any) -> None:
    """The sampler's cache has gaps that only full attention skips: windows and recurrent layers would count them.

    Raises:
        ValueError: the model has other layers.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    longest = getattr(config, "max_position_embeddings", None) or math.inf
    if kinds - {"full_attention"} or (not kinds and window is not None and window < longest):
        raise ValueError(
            f"only models with full attention in every layer can be used; this one has {sorted(kinds) or 'windows'}"
        )
