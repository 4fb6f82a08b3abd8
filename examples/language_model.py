"""EulerLoRA on a language model.

Adapt a frozen text encoder to a few labelled texts by LoRA and by EulerLoRA, and compare them over
paired seeds. The encoder is a folder of transformers with its tokenizer, such as all-MiniLM-L6-v2;
DATA has `train.csv` and `test.csv` with the columns `text` and `category`, such as BANKING77.

    python examples/language_model.py DATA --encoder FOLDER --out results.json

It needs `pip install ./eulerlora_client '.[peft,train]'` in a checkout. A run that was stopped
continues from its results.
"""

# %%
import argparse
import csv
import hashlib
import json
import os
from collections import defaultdict
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
parser.add_argument("--tokens", type=int, default=32, help="of a text; the rest is cut off")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--rank", type=int, default=20)
parser.add_argument("--samples", type=int, default=8, help="trajectories of a text")
parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
parser.add_argument("--bfloat16", action="store_true", help="autocast")
options = parser.parse_args()

# %% [markdown]
# **What is compared**, fixed before the first evaluation on test texts. Three arms train adapters
# on the attention of every block for the same steps, from the same head, texts and batches: LoRA
# as PEFT initialises it, LoRA with EulerLoRA's initial A (with `min_rank` equal to the rank nothing
# is drawn), and EulerLoRA, which draws once a step.
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
    "LoRA": LoraConfig,
    "LoRA, same initial A": lambda **values: EulerLoraConfig(min_rank=values["r"], **values),
    "EulerLoRA": EulerLoraConfig,
}
TARGETS = ["query", "key", "value", "attention.output.dense"]  # of BERT
PENALTIES = (1.0, 10.0, 100.0)  # C of the probe
BINS, LEVEL, POWER = 15, 0.05 / 2, 0.8

# %% [markdown]
# **Data.** A seed orders the texts of each class; the first are for training, as many for
# validation.

# %%
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
tokenizer = AutoTokenizer.from_pretrained(options.encoder)
rows = {}
for part in ("train", "test"):
    with (options.data / f"{part}.csv").open(encoding="utf-8", newline="") as file:
        rows[part] = list(csv.DictReader(file))
classes = sorted({row["category"] for row in rows["train"]})
if len(classes) < 3:
    raise SystemExit(f"category: expected at least 3 classes, got {len(classes)}")


class Texts:
    """Token ids of texts, and labels (n,)."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        texts = [row["text"] for row in rows]
        self.ids = tokenizer(texts, truncation=True, max_length=options.tokens)["input_ids"]
        self.labels = torch.tensor([classes.index(row["category"]) for row in rows])

    def batch(self, indices: list[int]) -> dict[str, Tensor]:
        """Returns `input_ids` and `attention_mask`, (len(indices), longest)."""
        return tokenizer.pad({"input_ids": [self.ids[i] for i in indices]}, return_tensors="pt")

    def batches(self, order: list[int], size: int) -> list[list[int]]:
        """Returns batches of similar lengths within each eight of them, in random order."""
        chunks = [order[i : i + 8 * size] for i in range(0, len(order), 8 * size)]
        ordered = [i for chunk in chunks for i in sorted(chunk, key=lambda i: len(self.ids[i]))]
        parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        return [parts[i] for i in torch.randperm(len(parts)).tolist()]


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


# %% [markdown]
# **Model.** The mean of the encoder's states and a linear head, which begins as a logistic
# regression on the frozen encoder: the probe.


# %%
class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(options.encoder)
        self.head = nn.Linear(self.encoder.config.hidden_size, len(classes))

    def features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the mean state (n, width) of each text."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask.unsqueeze(-1)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.features(input_ids, attention_mask))


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16)


@torch.no_grad()
def probe(training: Texts, penalty: float) -> Classifier:
    """Returns the frozen encoder with a fitted head."""
    model = Classifier().eval()
    indices = range(len(training.ids))
    with autocast():
        features = [model.features(**training.batch([i])).float() for i in indices]
    fitted = LogisticRegression(C=penalty, max_iter=2000)
    fitted.fit(torch.cat(features).numpy(), training.labels.numpy())
    model.head.weight.copy_(torch.from_numpy(fitted.coef_))
    model.head.bias.copy_(torch.from_numpy(fitted.intercept_))
    return model


def trained(arm: str, rate: float, training: Texts, seed: int) -> nn.Module:
    """Returns the probe with trained adapters and head."""
    model = probe(training, once("penalty", select_penalty))
    torch.manual_seed(seed)
    config = ARMS[arm](
        r=options.rank,
        lora_alpha=options.rank,
        target_modules=TARGETS,
        modules_to_save=["head"],
    )
    model = get_peft_model(model, config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate)
    count = len(training.ids)
    steps = options.epochs * -(-count // options.batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1, 0, total_iters=steps)
    for epoch in range(options.epochs):
        torch.manual_seed(1000 * seed + epoch)  # the same order in all arms
        for indices in training.batches(torch.randperm(count).tolist(), options.batch):
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
    probabilities = torch.empty(len(texts.ids), max(samples, 1), len(classes))
    order = sorted(range(len(texts.ids)), key=lambda i: len(texts.ids[i]))
    for start in range(0, len(order), 32):
        indices = order[start : start + 32]
        with autocast():
            if samples:
                with sampling(model, samples, seed=indices):
                    logits = model(**texts.batch(indices))
            else:
                logits = model(**texts.batch(indices))
        probabilities[indices] = logits.float().softmax(dim=-1).unflatten(0, (len(indices), -1))
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
    training, validation = drawn(0)
    return min(PENALTIES, key=lambda value: measures(probe(training, value), validation)["nll"])


def samples_of(arm: str) -> int:
    return options.samples if arm == "EulerLoRA" else 0


def validate(arm: str, rate: float) -> dict[str, float]:
    training, validation = drawn(0)
    return measures(trained(arm, rate, training, 0), validation, samples_of(arm))


def chosen(arm: str) -> float:
    """Returns the rate of an arm by its validation NLL."""
    nll = {
        r: once(f"validation: {arm}, {r:g}", lambda r=r: validate(arm, r)) for r in options.rates
    }
    return min(options.rates, key=lambda rate: nll[rate]["nll"])


def test(arm: str, seed: int) -> dict[str, dict[str, float]]:
    model, texts = trained(arm, rates[arm], drawn(seed)[0], seed), Texts(rows["test"])
    modes = {"det": 0} | ({"stoch": options.samples} if arm == "EulerLoRA" else {})
    return {mode: measures(model, texts, samples) for mode, samples in modes.items()}


def test_probe(seed: int) -> dict[str, dict[str, float]]:
    model = probe(drawn(seed)[0], once("penalty", select_penalty))
    return {"det": measures(model, Texts(rows["test"]))}


rates = {arm: chosen(arm) for arm in ARMS}
tested = defaultdict(list)  # measures by arm and mode, in the order of the seeds
for seed in options.seeds:
    runs = {"probe": once(f"test: probe, seed {seed}", lambda s=seed: test_probe(s))}
    for arm in ARMS:
        runs[arm] = once(f"test: {arm}, seed {seed}", lambda a=arm, s=seed: test(a, s))
    for arm, modes in runs.items():
        for mode, values in modes.items():
            tested[arm, mode].append(values)

# %% [markdown]
# **Result.** `detectable` is the difference that five such seeds would show with a probability of
# 80%. "No difference shown" does not mean equal.

# %%
print("rates:", rates)
for (arm, mode), runs in tested.items():
    columns = {name: torch.tensor([run[name] for run in runs]) for name in runs[0]}
    print(f"{arm}, {mode}:", *(f"{n} {v.mean():.4f} ± {v.std():.4f}" for n, v in columns.items()))

FINAL = ("EulerLoRA", "stoch")
PAIRS = [
    (FINAL, ("LoRA, same initial A", "det"), LEVEL),
    (FINAL, ("LoRA", "det"), 0.05),
    (FINAL, ("EulerLoRA", "det"), 0.05),
    (FINAL, ("probe", "det"), 0.05),
]
freedom = len(options.seeds) - 1
for left, right, level in PAIRS:
    for name in ("nll", "ece", "accuracy"):
        pairs = zip(tested[left], tested[right], strict=True)
        differences = [a[name] - b[name] for a, b in pairs]
        mean, error = sum(differences) / len(differences), stats.sem(differences)
        reach = stats.t.ppf(0.975, freedom) * error
        p = 2 * stats.t.sf(abs(mean) / error, freedom)
        limit = stats.t.ppf(1 - level / 2, freedom)
        detectable = special.nctdtrinc(freedom, 1 - POWER, limit) * error
        print(
            f"{name}, {', '.join(left)} - {', '.join(right)}: {mean:+.4f}"
            f" ({mean - reach:+.4f} to {mean + reach:+.4f}), p {p:.3f},",
            f"detectable {detectable:.4f}:",
            "shown" if p < level else "no difference shown",
        )
