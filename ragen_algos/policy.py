"""``LanguagePolicy``: a causal language model, its tokenizer and its chat template, as one object.

Token ids go in and token ids come out. A conversation is never rendered twice: the template is taken apart once into
the pieces around the messages, and each new message is tokenised on its own between those pieces. What the model
sampled is therefore never re-encoded, and text inside a message can never turn into a control token.

Simplification: every message is tokenised apart from the template pieces around it, so a tokenizer that would merge
characters across that border gives slightly different (always consistent) ids than one rendering of the whole chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ragen_algos.losses import entropy as token_entropy
from ragen_algos.losses import gather_log_probs
from ragen_algos.trajectory import Batch

TINY = ("tiny-mid", "tiny-full")
"""Names of the embedded checkpoints."""

_CARD = "ragen_policy.json"
_PLAIN_TEMPLATE = (
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
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        env_kwargs: dict[str, Any] | None = None,
        max_new_tokens: int = 400,
    ) -> None:
        self.model = model.eval()  # Dropout would make log-probabilities at sampling and at training differ.
        self.tokenizer = tokenizer
        self.name = name
        self.env_kwargs = dict(env_kwargs or {})
        self.max_new_tokens = max_new_tokens
        self._take_template_apart()

    # --- loading and saving ---------------------------------------------------------------------------------------

    @staticmethod
    def load(name: str, *, device: str = "auto") -> LanguagePolicy:
        """A policy by name.

        Args:
            name: ``tiny-mid``, ``tiny-full``, a checkpoint folder, or ``hf:NAME_OR_PATH``.
            device: ``auto`` (CUDA if there is one, for models that are not tiny), ``cpu`` or ``cuda``. On CUDA the
                weights are bfloat16, elsewhere float32.

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
            device = "cpu" if device == "auto" else device
        elif name.startswith("hf:"):
            path = name.removeprefix("hf:")
        else:
            path = Path(name)
            if not (path / "config.json").is_file():
                raise ValueError(
                    f"no policy {name!r}: expected {', '.join(TINY)}, a checkpoint folder with config.json, "
                    "or hf:NAME_OR_PATH"
                )
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        card = Path(path) / _CARD
        settings = json.loads(card.read_text()) if card.is_file() else {}
        dtype = torch.bfloat16 if device == "cuda" and not settings.get("tiny") else torch.float32
        # AutoTokenizer would replace a word-level tokenizer by the one usual for the architecture; what we saved
        # ourselves is loaded as it is.
        loader = PreTrainedTokenizerFast if card.is_file() else AutoTokenizer
        tokenizer = loader.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=False).to(device)
        settings.pop("tiny", None)
        return LanguagePolicy(model, tokenizer, name=name, **settings)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), tokenizer and settings; :meth:`load` reads the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)
        tiny = self.name in TINY or self.model.config.vocab_size < 1000
        settings = {"env_kwargs": self.env_kwargs, "max_new_tokens": self.max_new_tokens, "tiny": tiny}
        (folder / _CARD).write_text(json.dumps(settings, indent=1) + "\n")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

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
        text: str = self.tokenizer.decode(kept, skip_special_tokens=False)
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
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self._control_ids = frozenset(i for i, token in added.items() if token.special)
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
        ids = self._template_ids(between)
        close = [ids[0]] if ids and ids[0] in {*self._control_ids, tokenizer.eos_token_id} else []
        self._next_turn = close or [tokenizer.eos_token_id], ids[len(close) :], self._template_ids(last)
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        more = configured if isinstance(configured, list) else [configured]
        self.stop_ids = frozenset(i for i in (*close, tokenizer.eos_token_id, *more) if i is not None)

    # --- log-probabilities ----------------------------------------------------------------------------------------

    def log_probs(
        self, batch: Batch, *, with_entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities of a batch's tokens at the batch's temperature, in float32.

        Returns:
            ``[N, L]`` log-probabilities (column 0 is 0) and, if asked for, ``[N, L]`` entropies, in nats.
        """
        ids, attention = batch.ids.to(self.device), batch.attention_mask.to(self.device)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
        logp = gather_log_probs(logits, ids, batch.temperature)
        return logp, token_entropy(logits, batch.temperature) if with_entropy else None
