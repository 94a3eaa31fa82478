"""The loop: rollout, filter, credit, update, measure; with checkpoints from which a run resumes exactly.

All randomness of iteration ``i`` comes from ``(seed, i)``, so a resumed run needs no generator state: parameters,
optimiser state and counters are the whole of it. The policy as it was at the start is kept in memory (and on disk, in
``start/``) as the reference of ``kl_to_start``.

An update is a list of stages (``Algorithm.schedule``): all turns together, or one turn after the other. A stage is some
tokens of the batch, so everything below the list is the same for both.

Simplifications: one process, one device, constant learning rates, rollouts always by the current policy.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ragen_algos.advantages import singleton_groups
from ragen_algos.algorithms.base import Algorithm
from ragen_algos.diagnostics import EchoTrapMonitor, describe, template_metrics
from ragen_algos.losses import kl_penalty
from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import EpisodeSeed, episode_seeds, rollout
from ragen_algos.sampler import Sampler
from ragen_algos.trajectory import Batch, Trajectory, collate

MAX_LOGP_GAP = 1e-3
"""Sampling and training must agree on log-probabilities to this, in float32; no importance correction hides a bug."""
MAX_BAD_STEPS = 5
"""Non-finite updates in a row after which a run stops."""
TEMPLATE_EVERY = 5
"""Iterations between two measurements of template collapse; the first iteration has one."""
MAX_EMPTY_ITERATIONS = 5
"""Iterations in a row of which a filter kept no group, after which a run ends: nothing is left to learn from."""


class TrainingError(RuntimeError):
    """Training cannot go on: non-finite updates, or sampling and training disagree."""


@dataclass(frozen=True)
class TrainConfig:
    """What is held equal between algorithms.

    Raises:
        ValueError: a number out of range.
    """

    iterations: int
    groups: int
    """Levels per iteration."""
    group_size: int
    """Episodes per level."""
    seed: int
    temperature: float = 1.0
    levels: int | None = None
    """Train on this many levels, the same ones in every iteration, instead of new ones each time. Few of them is how to
    study memorising."""
    checkpoint_every: int = 5
    """Iterations between checkpoints; the last iteration always leaves one."""
    max_new_tokens: int | None = None
    """Sampled tokens per turn; the policy's own limit by default."""
    micro_batch: int = 16
    """Rows per forward pass, of similar length; changes memory and speed, results only by float rounding."""
    stop_on_collapse: bool = False
    """End the run once :class:`~ragen_algos.diagnostics.EchoTrapMonitor` says that training has collapsed."""

    def __post_init__(self) -> None:
        for name in ("iterations", "groups", "group_size", "checkpoint_every", "micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("levels", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")


class Critic(torch.nn.Module):
    """A copy of the policy's backbone with a linear value head that starts at 0."""

    def __init__(self, policy: LanguagePolicy) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.model.base_model)
        self.head = torch.nn.Linear(policy.model.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.to(policy.device)
        self.eval()
        self.precision = policy.precision

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns:
        ``values [N, L]`` of the state before each token (column 0 is 0), and ``[N]`` of the state after the last.
        """
        device = self.head.weight.device
        ids, attention = batch.ids.to(device), batch.attention_mask.to(device)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        with self.precision():
            out = self.backbone(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False)
        after = self.head(out.last_hidden_state.to(self.head.weight.dtype)).squeeze(-1).float()
        last = attention.sum(1) - 1
        values = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], 1)
        return values, after[torch.arange(len(after), device=device), last]


class Trainer:
    """Train a policy in place.

    Args:
        policy: Trained in place; its state at construction is the reference.
        algorithm: From :func:`ragen_algos.make`.
        env_id: A registered text environment.
        env_kwargs: Its arguments; the split is always ``train``.
        config: Sizes and seed.
        folder: Where checkpoints go. If it holds one of the same run, training resumes from it.
        on_iteration: Called with each new iteration's metrics.
        progress: Show a progress bar.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        algorithm: Algorithm,
        env_id: str,
        env_kwargs: dict[str, Any] | None,
        config: TrainConfig,
        *,
        folder: Path | None = None,
        on_iteration: Callable[[dict[str, Any]], None] | None = None,
        progress: bool = False,
    ) -> None:
        self.policy, self.algorithm, self.config = policy, algorithm, config
        self.env_id, self.env_kwargs = env_id, {**(env_kwargs or {}), "split": "train"}
        self.folder = Path(folder) if folder is not None else None
        self.on_iteration, self.progress = on_iteration, progress
        self.reference = copy.deepcopy(policy.model).requires_grad_(False)
        self.critic = Critic(policy) if algorithm.needs_critic else None
        self.optimizer = torch.optim.AdamW(
            policy.model.parameters(), lr=algorithm.lr, weight_decay=algorithm.weight_decay
        )
        self.critic_optimizer = (
            torch.optim.AdamW(self.critic.parameters(), lr=algorithm.critic_lr, weight_decay=algorithm.weight_decay)
            if self.critic is not None
            else None
        )
        self.metrics: list[dict[str, Any]] = []
        self.echo_trap = EchoTrapMonitor()
        self.stopped = ""
        """Why the run ended before its last iteration."""
        self.optimizer_steps = self.env_steps = self.sampled_tokens = self.bad_steps = 0

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> list[dict[str, Any]]:
        """Train to the last iteration, from the latest checkpoint if there is one.

        Ends early, with a warning and the reason in ``stopped``, after ``MAX_EMPTY_ITERATIONS`` without a group to
        train on, or on a collapse (see :class:`TrainConfig`).

        Returns:
            The metrics of all iterations, those before a resume included.

        Raises:
            TrainingError: see :class:`TrainingError`.
            ValueError: the folder holds a checkpoint of another run.
        """
        self._resume()
        start = len(self.metrics)
        steps: Any = range(start, start if self.stopped else self.config.iterations)
        if self.progress:
            from tqdm import tqdm

            steps = tqdm(steps, initial=start, total=self.config.iterations, desc=self.algorithm.name, unit="iteration")
        for iteration in steps:
            row = self.iterate(iteration)
            row.update(self.echo_trap.update(row).to_row())
            self.metrics.append(row)
            if self.progress:
                steps.set_postfix(success=f"{row['success']:.2f}", ret=f"{row['mean_return']:.2f}")
            self.stopped = self._reason_to_stop()
            done = iteration + 1
            last = bool(self.stopped) or done == self.config.iterations
            if self.folder is not None and (last or done % self.config.checkpoint_every == 0):
                self._save(done)
            if self.on_iteration is not None:
                self.on_iteration(row)
            if self.stopped:
                warnings.warn(f"training ended after {done} iterations: {self.stopped}", stacklevel=2)
                break
        return self.metrics

    def _reason_to_stop(self) -> str:
        """Why there should be no further iteration, or "". Looks at the metrics alone."""
        recent = self.metrics[-MAX_EMPTY_ITERATIONS:]
        if len(recent) == MAX_EMPTY_ITERATIONS and not any(row["kept_groups"] for row in recent):
            return f"the filter kept no group in {MAX_EMPTY_ITERATIONS} iterations in a row"
        if self.config.stop_on_collapse and self.metrics[-1]["verdict"] == "collapsed":
            return str(self.metrics[-1]["alarm"])
        return ""

    def iterate(self, iteration: int) -> dict[str, Any]:
        """One iteration: rollout, filter, credit, update. Returns its metrics."""
        clock = time.perf_counter()
        episodes = self._play(self._seeds(iteration, 0))
        first, extra = episodes, 0
        batch = self._collate(episodes)
        kept = self.algorithm.keep(batch)
        while extra < self.algorithm.extra_batches and len(batch.group_id[kept].unique()) < self.config.groups:
            extra += 1
            more = self._seeds(iteration, extra)
            episodes = episodes + self._play([_later(s, len(episodes), extra * self.config.groups) for s in more])
            batch = self._collate(episodes)
            kept = self.algorithm.keep(batch)
        rollout_seconds = time.perf_counter() - clock
        template = {}
        if iteration % TEMPLATE_EVERY == 0:
            template = template_metrics(self.policy, first, micro_batch=self.config.micro_batch)

        clock = time.perf_counter()
        groups = batch.group_id[kept].unique()[: self.config.groups]
        kept &= torch.isin(batch.group_id, groups)
        played = len(batch.group_id.unique())
        self.env_steps += sum(turn.n_actions for e in episodes for turn in e.turns)
        self.sampled_tokens += int(batch.loss_mask.sum())
        if kept.any():
            update = self._update(batch if kept.all() else batch.rows(kept.nonzero().squeeze(1)), iteration)
        else:
            update = self._no_update(batch)
        return {
            "iteration": iteration,
            **describe(first),
            **template,
            **update,
            "kept_groups": len(groups),
            "dropped_share": 1 - len(groups) / played,
            "extra_batches": extra,
            "optimizer_steps": self.optimizer_steps,
            "env_steps": self.env_steps,
            "sampled_tokens": self.sampled_tokens,
            "rollout_seconds": rollout_seconds,
            "update_seconds": time.perf_counter() - clock,
        }

    def _seeds(self, iteration: int, extra: int) -> list[EpisodeSeed]:
        """Of the batch of an iteration (``extra`` 0), or of one of those that replace groups a filter dropped."""
        config = self.config
        fixed = None
        if config.levels is not None:
            state = np.random.SeedSequence(config.seed, spawn_key=(4,)).generate_state(config.levels).tolist()
            first = (iteration * (1 + self.algorithm.extra_batches) + extra) * config.groups
            fixed = [state[(first + group) % config.levels] for group in range(config.groups)]
        root = (config.seed, iteration, 2, extra) if extra else (config.seed, iteration)
        return episode_seeds(root, groups=config.groups, group_size=config.group_size, levels=fixed)

    def _play(self, seeds: list[EpisodeSeed]) -> list[Trajectory]:
        config = self.config
        sampler = Sampler(self.policy, temperature=config.temperature, max_new_tokens=config.max_new_tokens)
        # The critic learns values where replies begin; V(s_L) must be read at such a place too.
        bootstrap = self.critic is not None and self.algorithm.truncated == "bootstrap"
        episodes = rollout(sampler, self.env_id, self.env_kwargs, seeds, last_sight=bootstrap)
        failed = [e for e in episodes if e.error]
        if failed:
            raise TrainingError(f"{len(failed)} episodes failed, the first with: {failed[0].error}")
        if not all(e.turns for e in episodes):
            raise TrainingError(
                f"the prompt and one reply of {sampler.max_new_tokens} tokens do not fit into the model's context of "
                f"{self.policy.context} tokens"
            )
        return episodes

    def _collate(self, episodes: list[Trajectory]) -> Batch:
        pad = self.policy.tokenizer.pad_token_id
        return collate(episodes, pad_id=pad if pad is not None else 0)

    # --- one update -----------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, iteration: int) -> dict[str, float]:
        algorithm = self.algorithm
        order = torch.argsort(batch.attention_mask.sum(1), stable=True)
        # Sampling's log-probabilities are the old ones in float32; in bfloat16 the two passes differ too much.
        exact = next(self.policy.model.parameters()).dtype == torch.float32 and not self.policy.half
        ref_logp = self._no_grad_logp(batch, order, self.reference) if algorithm.needs_reference else None
        gap = 0.0
        if not exact:
            sampled_logp, batch.logp = batch.logp, self._no_grad_logp(batch, order, self.policy.model)
            gap = float((sampled_logp - batch.logp).abs().max())
        kl_start = self._kl_to_start(batch, order, ref_logp)
        values = targets = None
        if self.critic is not None:
            values, bootstrap = self._values(batch, order)
            advantages, targets = algorithm.credit(batch, values, bootstrap, ref_logp=ref_logp)
        else:
            advantages, targets = algorithm.credit(batch, ref_logp=ref_logp)
        if not torch.isfinite(advantages).all():
            raise TrainingError("advantages are not finite")

        update = _Update(torch.zeros_like(batch.logp), ref_logp, values, targets, exact, gap)
        generator = self._generator(iteration, 1)
        n_turns = int(batch.turn_id.max()) + 1
        stages = algorithm.schedule(n_turns, self._generator(iteration, 3))
        correction = algorithm.correction(batch, [turn for turn in stages if turn is not None])
        for turn in stages:
            if turn is None:
                self._stage(update, batch, advantages, batch.logp, algorithm.steps_per_pass(n_turns), generator)
                continue
            assert correction is not None
            correction.start(turn)
            before = batch.only(correction.watched)
            for index in self._micro(before, correction.waiting()):
                correction.note(index, self._no_grad_logp(before.rows(index), torch.arange(len(index))))
            self._stage(
                update,
                batch.only([turn]),
                advantages * correction.weight[:, None],
                correction.old,
                algorithm.steps_per_pass(n_turns),
                generator,
            )
        mask = batch.loss_mask
        return {
            **{name: _mean(values) for name, values in update.seen.items()},
            "entropy": float(update.entropy[mask].sum()) / max(1, int(mask.sum())),
            "kl_to_start": kl_start,
            "logp_gap": update.gap,
            "skipped_steps": update.skipped,
            "singleton_groups": singleton_groups(batch.group_id),
        }

    def _generator(self, iteration: int, purpose: int) -> torch.Generator:
        seed = np.random.SeedSequence([self.config.seed, iteration, purpose]).generate_state(1)
        return torch.Generator().manual_seed(int(seed[0]))

    def _no_update(self, batch: Batch) -> dict[str, float]:
        """The metrics of an iteration without anything to train on, measured on all that was played."""
        order = torch.argsort(batch.attention_mask.sum(1), stable=True)
        tokens = max(1, int(batch.loss_mask.sum()))
        return {
            **dict.fromkeys(_SEEN, 0.0),
            "entropy": -float(batch.logp[batch.loss_mask].sum()) / tokens,  # an estimate that costs nothing
            "kl_to_start": self._kl_to_start(batch, order, None),
            "logp_gap": 0.0,
            "skipped_steps": 0,
            "singleton_groups": singleton_groups(batch.group_id),
        }

    def _stage(
        self,
        update: _Update,
        stage: Batch,
        advantages: torch.Tensor,
        old_logp: torch.Tensor,
        steps: int,
        generator: torch.Generator,
    ) -> None:
        """All epochs on some tokens of the batch.

        Args:
            update: What the stages of one update share.
            stage: All rows of the batch, with the tokens to train on; see :meth:`Batch.only`.
            advantages: [N, L].
            old_logp: [N, L] what ratios compare with.
            steps: Optimiser steps per epoch.
            generator: Shuffles the rows.
        """
        algorithm, mask = self.algorithm, stage.loss_mask
        if not mask.any():  # a turn that nobody reached draws no luck either
            return
        for epoch in range(algorithm.epochs):
            shuffled = torch.randperm(len(stage), generator=generator)
            for rows in shuffled.tensor_split(steps):
                live = rows[mask[rows].any(1)]  # the others count in the denominator
                if not len(live):
                    continue
                # Adam scales whatever there is to a full step, be it momentum or an entropy bonus alone: without any
                # advantage to learn from there is no step.
                something = bool((advantages[rows][mask[rows]] != 0).any())
                denominator = algorithm.denominator(mask[rows])
                self.optimizer.zero_grad(set_to_none=True)
                total, clipped, n_tokens = 0.0, 0.0, max(1, int(mask[rows].sum()))
                for index in self._micro(stage, live):
                    part = stage.rows(index)
                    cut = (index, slice(0, part.ids.shape[1]))
                    logp, ent = self.policy.log_probs(
                        part, with_entropy=True, entropy_gradient=algorithm.entropy_coef > 0
                    )
                    assert ent is not None
                    sampled = mask[cut].to(logp.device)
                    old = old_logp[cut].to(logp.device)
                    if epoch == 0:
                        update.entropy[cut] += torch.where(sampled, ent.detach(), 0.0).float().cpu()
                    if update.untouched and update.exact:
                        difference = torch.where(sampled, (logp.detach() - part.logp.to(logp.device)).abs(), 0.0)
                        update.gap = max(update.gap, float(difference.max()))
                        if not (update.gap <= MAX_LOGP_GAP and torch.isfinite(logp).all()):
                            raise TrainingError(
                                f"sampling and training log-probabilities differ by {update.gap:.2g} before any update"
                            )
                    clipped += algorithm.clip_fraction(logp.detach(), old, sampled) * int(sampled.sum())
                    loss = algorithm.loss(
                        logp,
                        old,
                        advantages[cut].to(logp.device),
                        sampled,
                        denominator,
                        ref_logp=None if update.ref_logp is None else update.ref_logp[cut].to(logp.device),
                        entropy=ent if algorithm.entropy_coef else None,
                    )
                    if something:
                        loss.backward()
                    total += float(loss.detach())
                update.untouched = False
                good = True
                if something:
                    norm = self._step(self.optimizer, self.policy.model, total)
                    good = math.isfinite(norm)
                    self.optimizer_steps += good
                    update.seen["grad_norm"].append(norm)
                update.seen["loss"].append(total)
                update.seen["clip_fraction"].append(clipped / n_tokens)
                if update.targets is not None and update.values is not None:
                    critic_loss, norm = self._critic_step(stage, rows, update.values, update.targets)
                    good = good and math.isfinite(norm)
                    update.seen["critic_loss"].append(critic_loss)
                update.skipped += not good
                self.bad_steps = 0 if good else self.bad_steps + 1
                if self.bad_steps >= MAX_BAD_STEPS:
                    raise TrainingError(f"{MAX_BAD_STEPS} non-finite updates in a row, the last with loss {total}")

    def _micro(self, batch: Batch, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Micro-batches of similar length: less padding, the same sums."""
        lengths = batch.attention_mask[rows].sum(1)
        return rows[torch.argsort(lengths, stable=True)].split(self.config.micro_batch) if len(rows) else ()

    def _step(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, loss: float) -> float:
        """Take the step if loss and gradients are finite. Returns the norm of the gradients, NaN if not taken."""
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.algorithm.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(loss)):
            return math.nan
        optimizer.step()
        return norm

    def _critic_step(
        self, batch: Batch, rows: torch.Tensor, values: torch.Tensor, targets: torch.Tensor
    ) -> tuple[float, float]:
        """Loss of the critic, and the norm of its gradients as in :meth:`_step`."""
        assert self.critic is not None
        assert self.critic_optimizer is not None
        denominator = self.algorithm.denominator(batch.loss_mask[rows])
        self.critic_optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index in self._micro(batch, rows):
            part = batch.rows(index)
            width = part.ids.shape[1]
            now, _ = self.critic(part)
            loss = self.algorithm.critic_loss(
                now,
                values[index, :width].to(now),
                targets[index, :width].to(now),
                part.loss_mask.to(now.device),
                denominator,
            )
            loss.backward()
            total += float(loss.detach())
        return total, self._step(self.critic_optimizer, self.critic, total)

    # --- forward passes without gradient --------------------------------------------------------------------------

    @torch.no_grad()
    def _values(self, batch: Batch, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.critic is not None
        values = torch.zeros(batch.ids.shape, dtype=torch.float64)
        after = torch.zeros(len(batch), dtype=torch.float64)
        for index in order.split(self.config.micro_batch):
            part = batch.rows(index)
            v, last = self.critic(part)
            values[index, : v.shape[1]] = v.double().cpu()
            after[index] = last.double().cpu()
        return values, after

    @torch.no_grad()
    def _no_grad_logp(self, batch: Batch, order: torch.Tensor, model: Any = None) -> torch.Tensor:
        """By the policy, or by another model."""
        out = torch.zeros(batch.ids.shape, dtype=torch.float32)
        with self._acting(model if model is not None else self.policy.model):
            for index in order.split(self.config.micro_batch):
                logp, _ = self.policy.log_probs(batch.rows(index))
                out[index, : logp.shape[1]] = logp.float().cpu()
        return out

    @contextmanager
    def _acting(self, model: Any) -> Iterator[None]:
        """The policy with other weights."""
        current, self.policy.model = self.policy.model, model
        try:
            yield
        finally:
            self.policy.model = current

    def _kl_to_start(self, batch: Batch, order: torch.Tensor, ref_logp: torch.Tensor | None) -> float:
        """Mean k3 of the policy that sampled the batch to the start, in nats per token, on at most 32 episodes."""
        some = order[:: max(1, len(order) // 32)][:32]
        part = batch.rows(some)
        if ref_logp is None:
            ref = self._no_grad_logp(part, torch.arange(len(part)), self.reference)
        else:
            ref = ref_logp[some, : part.ids.shape[1]]
        kl = kl_penalty(part.logp, ref, "k3", part.loss_mask)
        return float(kl.sum()) / max(1, int(part.loss_mask.sum()))

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        # What may change between a run and its resumption: how long, how often saved, how much at a time.
        free = ("iterations", "checkpoint_every", "micro_batch")
        config = {k: v for k, v in vars(self.config).items() if k not in free}
        return {
            "algorithm": self.algorithm.to_dict(),
            "env_id": self.env_id,
            "env_kwargs": self.env_kwargs,
            "config": config,
            "policy": self.policy.name,
        }

    def _save(self, done: int) -> None:
        from safetensors.torch import save_model

        assert self.folder is not None
        if not any(self.folder.glob("iteration-*")):
            with self._acting(self.reference):
                _write_folder(self.folder / "start", self.policy.save)

        def write(folder: Path) -> None:
            self.policy.save(folder / "policy")
            if self.critic is not None:
                save_model(self.critic, str(folder / "critic.safetensors"))
            optimizers = {"policy": self.optimizer.state_dict()}
            if self.critic_optimizer is not None:
                optimizers["critic"] = self.critic_optimizer.state_dict()
            torch.save(optimizers, folder / "optimizers.pt")
            state = {
                "identity": self._identity(),
                "metrics": self.metrics,
                "optimizer_steps": self.optimizer_steps,
                "env_steps": self.env_steps,
                "sampled_tokens": self.sampled_tokens,
                "bad_steps": self.bad_steps,
                "stopped": self.stopped,
            }
            (folder / "state.json").write_text(json.dumps(state))

        _write_folder(self.folder / f"iteration-{done:06d}", write)
        for old in sorted(self.folder.glob("iteration-*"))[:-1]:
            shutil.rmtree(old)

    def _resume(self) -> None:
        from safetensors.torch import load_model

        if self.folder is None or self.metrics:
            return
        for unfinished in self.folder.glob(".*.writing"):
            shutil.rmtree(unfinished)
        found = sorted(self.folder.glob("iteration-*"))
        if not found:
            return
        folder = found[-1]
        state = json.loads((folder / "state.json").read_text())
        if state["identity"] != json.loads(json.dumps(self._identity())):
            raise ValueError(f"{self.folder.name} holds a checkpoint of another run; choose another folder")
        done = len(state["metrics"])
        if done > self.config.iterations:
            raise ValueError(f"the checkpoint has {done} iterations, more than the {self.config.iterations} asked for")
        for model, kept in ((self.policy.model, folder / "policy"), (self.reference, self.folder / "start")):
            # On the CPU, where weights are float32 whatever they are here.
            model.load_state_dict(LanguagePolicy.load(str(kept), device="cpu").model.state_dict())
        optimizers = torch.load(folder / "optimizers.pt", weights_only=True, map_location="cpu")
        self.optimizer.load_state_dict(optimizers["policy"])
        if self.critic is not None and self.critic_optimizer is not None:
            load_model(self.critic, str(folder / "critic.safetensors"), device=str(self.policy.device))
            self.critic_optimizer.load_state_dict(optimizers["critic"])
        self.metrics = state["metrics"]
        for row in self.metrics:
            self.echo_trap.update(row)
        self.optimizer_steps, self.env_steps = state["optimizer_steps"], state["env_steps"]
        self.sampled_tokens, self.bad_steps = state["sampled_tokens"], state["bad_steps"]
        self.stopped = state["stopped"]


_SEEN = ("loss", "grad_norm", "clip_fraction", "critic_loss")


@dataclass
class _Update:
    """What the stages of one update share."""

    entropy: torch.Tensor
    """[N, L] of the distributions that sampled tokens were drawn from, as each token is first trained."""
    ref_logp: torch.Tensor | None
    values: torch.Tensor | None
    targets: torch.Tensor | None
    exact: bool
    """Sampling and training compute in the same precision."""
    gap: float
    """Largest difference between their log-probabilities so far."""

    def __post_init__(self) -> None:
        self.seen: dict[str, list[float]] = {name: [] for name in _SEEN}
        self.untouched = True  # no optimiser step was taken yet
        self.skipped = 0


def _later(seed: EpisodeSeed, episodes: int, groups: int) -> EpisodeSeed:
    """The same seed, numbered after what was already played in this iteration."""
    return replace(seed, group_id=seed.group_id + groups, trajectory_id=seed.trajectory_id + episodes)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder so that it either exists whole or not at all."""
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write(temporary)
    for path in [*temporary.rglob("*"), temporary]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)
