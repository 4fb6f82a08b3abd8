"""EulerLoRA on a language model.

Adapt a frozen text encoder to a few labelled texts by LoRA and by EulerLoRA, and compare them over
paired seeds. DATA has `train.csv` and `test.csv` with the columns `text` and `category`, such as
BANKING77 (https://github.com/PolyAI-LDN/task-specific-datasets, folder `banking_data`). The encoder
is a folder with a BERT of transformers and its tokenizer, such as
https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2.

    python language_model.py DATA --encoder FOLDER

It needs `pip install ./eulerlora_contract '.[peft,train]'` in a checkout. A run that was stopped
continues from its results.
"""

# %%
import argparse
import csv
import functools
import hashlib
import json
import os
from collections import defaultdict
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from scipy import special, stats
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from eulerlora import summarise
from eulerlora.peft import EulerLoraConfig, sampling

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--encoder", type=Path, required=True)
parser.add_argument("--out", type=Path, default=Path("language-model.json"))
parser.add_argument("--texts", type=int, default=5, help="training texts of a class")
parser.add_argument("--test-texts", type=int, default=40, help="of a class, the first ones")
parser.add_argument("--tokens", type=int, default=32, help="of a text; the rest is cut off")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--blocks", type=int, default=2, help="the last ones, which are adapted")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--rank", type=int, default=20)
parser.add_argument("--samples", type=int, default=8, help="trajectories of a text")
parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4])
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
parser.add_argument("--bfloat16", action="store_true", help="autocast")
options = parser.parse_args()

# %% [markdown]
# **What is compared**, fixed before the first evaluation on test texts. Three arms train adapters
# on the attention of the last blocks for the same steps, from the same head, texts and batches:
# EulerLoRA, which draws once a step, LoRA with EulerLoRA's initial A (with `min_rank` equal to the
# rank nothing is drawn), and LoRA as PEFT initialises it.
#
# - **Primary endpoints**: NLL and ECE (15 bins) on the test texts, EulerLoRA with 8 trajectories
#   less LoRA with the same initial A, paired by seed. A difference is shown if p < 0.025 in a
#   paired t-test, for two endpoints.
# - All other differences are described, with intervals that are not corrected.
# - The rate of an arm is the one with the lowest validation NLL, in the mode in which the arm is
#   compared, at seed 0, whose run is not tested. A seed draws its training texts, adapters,
#   dropout, and order.

# %%
ARMS = {
    "EulerLoRA": EulerLoraConfig,
    "LoRA, same initial A": lambda **values: EulerLoraConfig(min_rank=values["r"], **values),
    "LoRA": LoraConfig,
}
TARGETS = ["query", "key", "value", "attention.output.dense"]  # of BERT
PENALTIES = (1.0, 10.0, 100.0)  # C of the probe
BINS, LEVEL, POWER = 15, 0.05 / 2, 0.8

# %% [markdown]
# **Data.** A seed orders the texts of each class; the first are for training, as many for
# validation. The blocks below the adapted ones are frozen, so their states are computed once.

# %%
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
tokenizer = AutoTokenizer.from_pretrained(options.encoder)
encoder = AutoModel.from_pretrained(options.encoder, attn_implementation="sdpa").eval()
rows = {}
for part in ("train", "test"):
    with (options.data / f"{part}.csv").open(encoding="utf-8", newline="") as file:
        rows[part] = list(csv.DictReader(file))
classes = sorted({row["category"] for row in rows["train"]})
if len(classes) < 3:
    raise SystemExit(f"category: expected at least 3 classes, got {len(classes)}")


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16)


class Texts:
    """Labels (n,) of texts, and for each the states (tokens, width) below the adapted blocks."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        texts = [row["text"] for row in rows]
        ids = tokenizer(texts, truncation=True, max_length=options.tokens)["input_ids"]
        self.lengths = [len(tokens) for tokens in ids]
        self.labels = torch.tensor([classes.index(row["category"]) for row in rows])
        self.states = [torch.empty(0)] * len(rows)
        for indices in self.by_length(64):
            batch = tokenizer.pad({"input_ids": [ids[i] for i in indices]}, return_tensors="pt")
            with torch.no_grad(), autocast():
                states = encoder(**batch, output_hidden_states=True).hidden_states
            for i, state in zip(indices, states[-1 - options.blocks].float(), strict=True):
                self.states[i] = state[: self.lengths[i]].clone()

    def by_length(self, size: int) -> list[list[int]]:
        """Returns batches of texts of similar lengths."""
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i])
        return [order[i : i + size] for i in range(0, len(order), size)]

    def epoch(self, size: int) -> list[list[int]]:
        """Returns random batches of similar lengths, drawn from torch's default generator."""
        order = torch.randperm(len(self.lengths)).tolist()
        chunks = [order[i : i + 8 * size] for i in range(0, len(order), 8 * size)]
        ordered = [i for chunk in chunks for i in sorted(chunk, key=lambda i: self.lengths[i])]
        parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        return [parts[i] for i in torch.randperm(len(parts)).tolist()]

    def batch(self, indices: list[int]) -> dict[str, Tensor]:
        """Returns states (n, longest, width), and which are of tokens (n, longest)."""
        states = nn.utils.rnn.pad_sequence([self.states[i] for i in indices], batch_first=True)
        lengths = torch.tensor([self.lengths[i] for i in indices])
        return {"states": states, "mask": torch.arange(states.shape[1]) < lengths[:, None]}


@functools.cache
def drawn(seed: int) -> tuple[Texts, Texts]:
    """Returns the training and validation texts of a seed."""
    torch.manual_seed(seed)
    by_class = defaultdict(list)
    for i in torch.randperm(len(rows["train"])).tolist():
        by_class[rows["train"][i]["category"]].append(rows["train"][i])
    count = options.texts
    training = [row for name in classes for row in by_class[name][:count]]
    validation = [row for name in classes for row in by_class[name][count : 2 * count]]
    return Texts(training), Texts(validation)


@functools.cache
def test_texts() -> Texts:
    by_class = defaultdict(list)
    for row in rows["test"]:
        by_class[row["category"]].append(row)
    return Texts([row for name in classes for row in by_class[name][: options.test_texts]])


# %% [markdown]
# **Model.** The last blocks, the mean of a text's states and a linear head, which begins as a
# logistic regression on the frozen encoder: the probe.


# %%
class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = deepcopy(encoder.encoder.layer[-options.blocks :])
        self.head = nn.Linear(encoder.config.hidden_size, len(classes))

    def features(self, states: Tensor, mask: Tensor) -> Tensor:
        """Returns the mean state (n, width) of each text."""
        for block in self.blocks:
            states = block(states, mask[:, None, None, :])
        weights = mask.unsqueeze(-1) / mask.sum(dim=1)[:, None, None]
        return (states * weights).sum(dim=1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.features(states, mask))


@functools.cache
@torch.no_grad()
def probe(seed: int, penalty: float) -> Classifier:
    """Returns the frozen encoder with a fitted head."""
    model, (training, _) = Classifier().eval(), drawn(seed)
    features = torch.empty(len(training.labels), encoder.config.hidden_size)
    for indices in training.by_length(64):
        with autocast():
            features[indices] = model.features(**training.batch(indices)).float()
    fitted = LogisticRegression(C=penalty, max_iter=2000)
    fitted.fit(features.numpy(), training.labels.numpy())
    model.head.weight.copy_(torch.from_numpy(fitted.coef_))
    model.head.bias.copy_(torch.from_numpy(fitted.intercept_))
    return model


def trained(arm: str, rate: float, seed: int) -> nn.Module:
    """Returns the probe with trained adapters and head."""
    model, (training, _) = deepcopy(probe(seed, once("penalty", select_penalty))), drawn(seed)
    torch.manual_seed(seed)
    config = ARMS[arm](
        r=options.rank,
        lora_alpha=options.rank,
        target_modules=TARGETS,
        modules_to_save=["head"],
    )
    model = get_peft_model(model, config).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate)
    steps = options.epochs * len(training.epoch(options.batch))
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1, 0, total_iters=steps)
    for epoch in range(options.epochs):
        torch.manual_seed(1000 * seed + epoch)  # the same order in all arms
        for indices in training.epoch(options.batch):
            with autocast():
                logits = model(**training.batch(indices))
            loss = F.cross_entropy(logits.float(), training.labels[indices])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


# %% [markdown]
# **Measures** of the mean probability over a text's trajectories, which are drawn from a seed of
# the text.


# %%
def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Returns the ECE of (n,) maximum probabilities in equal bins (lo, hi]; right: (n,), 0 or 1."""
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right - confidence)
    return gaps.abs().sum().item() / len(right)


@torch.no_grad()
def measures(model: nn.Module, texts: Texts, samples: int = 0) -> dict[str, float]:
    """Returns accuracy, NLL in nats, ECE, and the mean mutual information in nats."""
    probabilities = torch.empty(len(texts.labels), max(samples, 1), len(classes))
    for indices in texts.by_length(32):
        drawing = sampling(model, samples, seed=indices) if samples else nullcontext()
        with autocast(), drawing:
            logits = model(**texts.batch(indices)).float()
        probabilities[indices] = logits.softmax(dim=-1).unflatten(0, (len(indices), -1))
    summary = summarise(probabilities)
    mean, labels = summary.probabilities, texts.labels
    right = (mean.argmax(dim=-1) == labels).double()
    return {
        "accuracy": right.mean().item(),
        "nll": -mean[range(len(labels)), labels].log().mean().item(),
        "ece": calibration_error(summary.msp, right),
        "mutual_information": summary.mutual_information.mean().item(),
    }


# %% [markdown]
# **Runs.** Each result is written when it is there. Rates are chosen on validation texts; then the
# seeds are tested.


# %%
def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


settings = {
    name: value for name, value in vars(options).items() if name not in {"data", "encoder", "out"}
}
settings |= {f"{part}_sha256": sha256(options.data / f"{part}.csv") for part in rows}
settings["encoder_sha256"] = sha256(options.encoder / "model.safetensors")
settings["torch"] = torch.__version__
results = json.loads(options.out.read_text()) if options.out.exists() else {"settings": settings}
if results["settings"] != settings:
    raise SystemExit(f"{options.out}: expected results of the same settings")


def once(key, compute):
    """Returns the stored result of a key, computed first if there is none."""
    if key not in results:
        results[key] = compute()
        print(key, results[key], flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return results[key]


def select_penalty() -> float:
    return min(PENALTIES, key=lambda value: measures(probe(0, value), drawn(0)[1])["nll"])


def validated(arm: str, rate: float) -> dict[str, float]:
    samples = options.samples if arm == "EulerLoRA" else 0
    return measures(trained(arm, rate, 0), drawn(0)[1], samples)


def chosen(arm: str) -> float:
    """Returns the rate of an arm with the lowest validation NLL."""
    measured = {
        rate: once(f"validation: {arm}, {rate:g}", lambda r=rate: validated(arm, r))["nll"]
        for rate in options.rates
    }
    return min(measured, key=measured.get)


def tested(arm: str, rate: float | None, seed: int) -> dict[str, dict[str, float]]:
    """Returns the measures on the test texts by mode."""
    if rate is None:
        return {"det": measures(probe(seed, once("penalty", select_penalty)), test_texts())}
    model = trained(arm, rate, seed)
    results = {"det": measures(model, test_texts())}
    if arm == "EulerLoRA":
        results["stoch"] = measures(model, test_texts(), options.samples)
    return results


# %% [markdown]
# **Result.** `detectable` is the difference that so many seeds would show with a probability of
# 80%. "No difference shown" does not mean equal.


# %%
def compare(left: list[dict[str, float]], right: list[dict[str, float]], level: float) -> None:
    """Prints the paired differences with 95% intervals of Student's t."""
    freedom = len(left) - 1
    for name in ("nll", "ece", "accuracy"):
        differences = [a[name] - b[name] for a, b in zip(left, right, strict=True)]
        mean, error = sum(differences) / len(differences), stats.sem(differences)
        reach = stats.t.ppf(0.975, freedom) * error
        p = 2 * stats.t.sf(abs(mean) / error, freedom)
        limit = stats.t.ppf(1 - level / 2, freedom)
        detectable = special.nctdtrinc(freedom, 1 - POWER, limit) * error
        print(
            f"  {name}: {mean:+.4f} ({mean - reach:+.4f} to {mean + reach:+.4f}), p {p:.3f},",
            f"detectable {detectable:.4f}:",
            "shown" if p < level else "no difference shown",
        )


runs = defaultdict(list)  # measures by arm and mode, in the order of the seeds
for group in (["EulerLoRA", "LoRA, same initial A", "probe"], ["LoRA"]):
    rates = {arm: chosen(arm) for arm in group if arm in ARMS}
    for seed in options.seeds:
        for arm in group:
            rate = rates.get(arm)
            modes = once(f"test: {arm}, seed {seed}", lambda a=arm, r=rate, s=seed: tested(a, r, s))
            for mode, values in modes.items():
                runs[arm, mode].append(values)
    for arm in group:
        for mode in ("det", "stoch") if arm == "EulerLoRA" else ("det",):
            columns = {n: torch.tensor([run[n] for run in runs[arm, mode]]) for n in values}
            described = [f"{n} {v.mean():.4f} ± {v.std():.4f}" for n, v in columns.items()]
            print(f"{arm}, {mode}, rate {rates.get(arm)}:", *described)
        level = LEVEL if arm == "LoRA, same initial A" else 0.05
        print(f"EulerLoRA, stoch - {arm}, det:", flush=True)
        compare(runs["EulerLoRA", "stoch"], runs[arm, "det"], level)
