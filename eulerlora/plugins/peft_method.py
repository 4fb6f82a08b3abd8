"""EulerLoRA as a method of PEFT, for every `nn.Linear` of any transformer.

    model = get_peft_model(model, EulerLoraConfig())
    with sampling(model, samples=4, seed=0):
        logits = model(**batch).logits  # (examples * 4, ...), the rows of an example in order

It is LoRA whose rank-one directions have random coefficients c of mean 1,

    y = W0 x + b0 + lora_alpha / r * B (c * (A x))

A module with the role `input` has one mask as c, a module with the role `output` the coefficients
after all Euler steps (`eulerlora.sampling`). In training mode each forward pass draws c for the
whole batch, from torch's default generator like dropout. Otherwise c = 1: the layers are those of
PEFT's LoRA, from which merging, saving, `set_adapter` and the rest are inherited.

Importing this module registers the method with PEFT, which needs it before `from_pretrained`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from accelerate.state import GradientState, PartialState
from peft import LoraConfig
from peft.tuners.lora import Linear, LoraLayer, LoraModel
from peft.tuners.tuners_utils import _maybe_include_all_linear_layers  # noqa: PLC2701
from peft.utils import register_peft_method
from peft.utils.constants import DUMMY_TARGET_MODULES
from peft.utils.other import get_pattern_key
from peft.utils.peft_types import PeftType
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map  # noqa: PLC2701
from transformers.pytorch_utils import Conv1D

from eulerlora.sampling.masks import (
    INIT_GAIN,
    AdapterSettings,
    draw_masks,
    terminal_coefficients,
)
from eulerlora.sampling.recomputation import PassRecord, in_backward
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import validated

__all__ = ["EulerLoraConfig", "draw_coefficients", "sampling"]

_NAME = "eulerlora"
_Role = Literal["input", "output"]
_ROLES: Mapping[str, _Role] = {
    r"(o|out|o_proj|out_proj|out_lin|attn\.proj|attn\.c_proj)": "output",
    r"(attention|self_attention|attention\.output)\.dense": "output",
    r"(fc2|c_proj|wo|lin2|down_proj|w2|dense_4h_to_h|output\.dense)": "output",
    r"([qkv]|[qkv]_proj|[qkv]_lin|query|key|value|(query|key|value)_proj)": "input",
    r"(qkv|qkv_proj|query_key_value|c_attn|in_proj|Wqkv)": "input",
    r"(fc1|c_fc|wi|wi_[01]|lin1|gate_proj|up_proj|gate_up_proj|w[13])": "input",
    r"(dense_h_to_4h|intermediate\.dense)": "input",
}
"""Roles of modules by a regular expression for the end of their name, the first match first."""

_TARGETS: Mapping[tuple[str, ...], list[str]] = {
    (
        "vit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "llama", "mistral",
        "mixtral", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "stablelm",
    ): ["q_proj", "k_proj", "v_proj", "o_proj"],
    ("clip", "clip_vision_model", "siglip", "bart", "opt"): [
        "q_proj", "k_proj", "v_proj", "out_proj",
    ],
    ("bert", "roberta", "xlm-roberta", "electra"): [
        "query", "key", "value", "attention.output.dense",
    ],
    ("distilbert",): ["q_lin", "k_lin", "v_lin", "out_lin"],
    ("t5", "mt5"): ["q", "k", "v", "o"],
    ("gpt2",): ["c_attn", "attn.c_proj"],
}  # fmt: skip
"""The four projections of attention by transformers' `model_type`."""

_UNSUPPORTED = (
    "target_parameters", "layer_replication", "megatron_config", "use_qalora",
    "ensure_weight_tying",
)  # fmt: skip
"""Options of LoRA that change what is computed and have no counterpart with coefficients."""
_BASE_MODEL = "__base__"
"""In PEFT's `adapter_names`: no adapter."""
_BASE_WEIGHTS, _ROUNDING = 16, 0.02


@dataclass
class EulerLoraConfig(LoraConfig):
    """Settings of EulerLoRA; those of `LoraConfig` that are not refused keep their meaning.

    The defaults are the paper's but for `init_gain`.

    Raises:
        SettingsError: For a value out of range and for a variant of LoRA (DoRA, PiSSA, MonteCLoRA,
            ...).
    """

    r: int = field(default=20, metadata={"help": "Number of rank-one directions of a module."})
    lora_alpha: int | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "The update is scaled by lora_alpha / r; None for r."}
    )
    min_rank: int | None = field(
        default=None,
        metadata={
            "help": "Least number of active directions, 1 to r; None for half of r, rounded up, "
            "also of a module's own r."
        },
    )
    steps: int = field(default=2, metadata={"help": "Euler steps at modules of the role output."})
    scale: float = field(
        default=1.0,
        metadata={"help": "Scale of the fluctuation at modules of the role output; 0 removes it."},
    )
    init_gain: float = field(
        default=INIT_GAIN,
        metadata={"help": "Gain of the Xavier-uniform initial A, above 0; 10 in the paper."},
    )
    roles: dict[str, str] | None = field(
        default=None,
        metadata={
            "help": "Role, input or output, by a regular expression for the end of module names, "
            "as in rank_pattern; before the known names."
        },
    )
    base: dict[str, Any] | None = field(
        default=None,
        metadata={"help": "Identifies the base model; set when the adapter is created."},
    )

    def __post_init__(self) -> None:
        self.lora_alpha = self.r if self.lora_alpha is None else self.lora_alpha
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.peft_type = PeftType(_NAME.upper())
        self.stored_base = self.base is not None  # not one that a model set
        self.settings_of_rank(self.r)
        variants = (f.name for f in fields(LoraConfig) if f.metadata.get("is_lora_variant"))
        for name in (*_UNSUPPORTED, *variants):
            if getattr(self, name):
                raise SettingsError(f"{name}: expected none with EulerLoRA")
        if not isinstance(self.init_lora_weights, bool):
            raise SettingsError(
                f"init_lora_weights: expected true or false, got {self.init_lora_weights!r}"
            )
        if not 0 < self.init_gain < float("inf"):
            raise SettingsError(f"init_gain: expected a number above 0, got {self.init_gain}")
        for pattern, role in (self.roles or {}).items():
            if role not in ("input", "output"):
                raise SettingsError(f"roles: expected input or output for {pattern}, got {role}")

    def settings_of_rank(self, rank: int) -> AdapterSettings:
        values = {"adapters": 1, "rank": rank, "steps": self.steps, "scale": self.scale}
        least = {} if self.min_rank is None else {"min_rank": self.min_rank}
        return validated(AdapterSettings, values | least)

    def role(self, module: str) -> _Role:
        """The role of a module by its name.

        Raises:
            SettingsError: If none is known.
        """
        for pattern, role in [*(self.roles or {}).items(), *_ROLES.items()]:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return cast(_Role, role)
        raise SettingsError(f"{module}: expected its role, input or output, in `roles`")

    def save_pretrained(self, save_directory: str, **kwargs: Any) -> None:
        """Writes `adapter_config.json`, and the method's settings to the model card beside it."""
        super().save_pretrained(save_directory, **kwargs)
        card = Path(save_directory) / "README.md"
        if card.is_file() and _CARD_TITLE not in (text := card.read_text(encoding="utf-8")):
            names = ("r", "lora_alpha", "min_rank", "steps", "scale", "init_gain", "roles")
            values = "".join(f"- `{name}`: {getattr(self, name)}\n" for name in names)
            targets = self.target_modules
            shown = targets if isinstance(targets, str) else ", ".join(sorted(targets or ()))
            section = (
                f"{_CARD_TITLE}\n\n{values}- `target_modules`: {shown}\n\n"
                "`import eulerlora.peft` before `PeftModel.from_pretrained`. Without\n"
                "`eulerlora.peft.sampling` the adapter is LoRA.\n"
            )
            card.write_text(f"{text.rstrip()}\n\n{section}", encoding="utf-8")


_CARD_TITLE = "## EulerLoRA"


@dataclass(frozen=True, eq=False)
class _SamplingState:
    """What the layers of a model share in a pass of `sampling`.

    Attributes:
        samples: Rows of each example.
        draw: Returns the coefficients of the active adapters, none if each pass draws anew.
        coefficients: Of the adapters that were active so far, (samples, r) or (rows, r).
        rows: Of a call of the model, None outside of one.
        members: With an adapter for each example (PEFT's `adapter_names`), the rows of each.
    """

    samples: int
    draw: "Callable[[], dict[Directions, Tensor]]"
    coefficients: "dict[Directions, Tensor]"
    rows: int | None = None
    members: "Mapping[Directions, Tensor] | None" = None

    def of_rows(self, layer: "Directions", coefficients: Tensor, count: int) -> Tensor:
        rows = self.rows or (count if self.samples == 1 else 0)
        members = None if self.members is None else self.members[layer]
        taken = rows if members is None else len(members)
        if not taken or rows % len(coefficients) or count % taken:
            if in_backward():
                raise SettingsError(
                    "torch.utils.checkpoint around the model: expected its backward pass in the "
                    "block of sampling"
                )
            raise SettingsError(
                f"sampling: expected inputs of {len(coefficients)} rows or a multiple from a call "
                f"of the model, got {count}; other methods of the model need one row per example"
            )
        repeated = coefficients.repeat(rows // len(coefficients), 1)
        if members is not None:
            repeated = repeated[members.to(repeated.device)]
        return repeated.repeat_interleave(count // taken, dim=0)


class Directions(nn.Linear):
    """The matrix A of an adapter, (r, in_features), whose outputs are multiplied by coefficients.

    Attributes:
        sampling: In the block of `sampling`, otherwise None.
        passes: The `sampling` of the latest passes, for activation checkpointing.
        recorded: Whether the latest pass is among them.
    """

    def __init__(self, linear: nn.Linear, law: AdapterSettings, role: _Role) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.register_parameter("bias", None)
        self.law, self.role = law, role
        self.sampling: _SamplingState | None = None
        self.passes, self.recorded = PassRecord[_SamplingState | None](), False

    def __getstate__(self) -> dict[str, Any]:
        """Without the draws of a block, which end with it."""
        return self.__dict__ | {"sampling": None, "passes": PassRecord(), "recorded": False}

    def draw(self, samples: int, generator: Generator) -> Tensor:
        """Draws independent coefficients (samples, r) on the CPU."""
        rank, least = self.law.rank, self.law.min_rank
        if self.role == "input":
            return draw_masks((samples,), rank, least, generator)
        masks = draw_masks((self.law.steps, samples), rank, least, generator)
        return terminal_coefficients(masks, self.law.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (rows, ..., in_features); or (rows * n, ..., in_features), of which n consecutive
        ones are parts of a row.
        """
        directions = super().forward(inputs)
        state = self._state_of_pass()
        if state is None and not self.training:
            return directions
        coefficients = None
        if state is not None:
            if self not in state.coefficients:  # it was not active before
                state.coefficients.update(state.draw())
            coefficients = state.coefficients.get(self)
        if coefficients is None:
            samples = 1 if state is None else state.samples
            coefficients = self.draw(samples, torch.default_generator)
        coefficients = coefficients.to(directions)
        if state is not None and len(coefficients) > 1:
            coefficients = state.of_rows(self, coefficients, len(directions))
        return directions * coefficients.view(-1, *[1] * (directions.ndim - 2), self.out_features)

    def _state_of_pass(self) -> _SamplingState | None:
        """`sampling`, or that of the pass which activation checkpointing runs again."""
        if in_backward():
            try:
                return self.passes.again()
            except SettingsError:
                if self.training or self.recorded:
                    raise
                return None
        self.recorded = self.training or self.sampling is not None
        if self.recorded:
            self.passes.add(self.sampling)
        return self.sampling


def _directions(model: nn.Module) -> list[Directions]:
    return [module for module in model.modules() if isinstance(module, Directions)]


class _EulerLoraLinear(Linear):
    """PEFT's LoRA layer whose A is `Directions`."""

    def update_layer(
        self, adapter_name: str, r: int, lora_alpha: int, config: LoraConfig, **kwargs: Any
    ) -> None:
        super().update_layer(adapter_name, r, lora_alpha, config=config, **kwargs)
        linear = self.lora_A[adapter_name]
        assert isinstance(config, EulerLoraConfig)
        assert isinstance(linear, nn.Linear)
        role = config.role(kwargs["target_name"])
        directions = Directions(linear, config.settings_of_rank(r), role)
        if config.init_lora_weights:
            nn.init.xavier_uniform_(directions.weight, gain=config.init_gain)
        self.lora_A[adapter_name] = directions.train(self.training)


def _linear_names(model: nn.Module) -> str:
    """The last parts of the names of the linear modules, in the order of the model."""
    linear = (name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    return ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))


class _EulerLoraModel(LoraModel):
    """Replaces the targeted modules by `_EulerLoraLinear`."""

    target_module_mapping: dict[str, Sequence[str]] = {
        kind: names for kinds, names in _TARGETS.items() for kind in kinds
    }

    def _prepare_adapter_config(self, peft_config: Any, model_config: Any) -> Any:
        kind = model_config.get("model_type")
        if peft_config.target_modules is None and kind not in self.target_module_mapping:
            raise SettingsError(
                f"target_modules: expected names of linear modules ({_linear_names(self.model)}), "
                f"none are known for a model of type {kind}"
            )
        prepare = super()._prepare_adapter_config
        return prepare(peft_config, model_config)  # type: ignore[no-untyped-call]

    def _prepare_model(self, peft_config: Any, model: nn.Module) -> None:
        """Refuses targets that are not supported; PEFT calls it before it changes the model."""
        if peft_config.target_modules == DUMMY_TARGET_MODULES:
            return
        config: Any = _maybe_include_all_linear_layers(peft_config, model)
        layers = tuple(n + "." for n, m in model.named_modules() if isinstance(m, LoraLayer))
        targets = {
            name: module.get_base_layer() if isinstance(module, LoraLayer) else module
            for name, module in model.named_modules()
            if name
            and not name.startswith(layers or ("\0",))
            and self._check_target_module_exists(config, name)
        }
        given, modules = config.target_modules, [f".{name}" for name, _ in model.named_modules()]
        names = [given] if isinstance(given, str) else sorted(given)
        # PEFT leaves out a name without a module, if another name has one.
        unmatched = [
            name
            for name in names
            if name is not given and not any(module.endswith(f".{name}") for module in modules)
        ]
        if unmatched or not targets:
            raise SettingsError(
                f"target_modules: expected names of linear modules ({_linear_names(model)}), "
                f"{', '.join(unmatched or names)} match none"
            )
        for name, module in targets.items():
            _check_linear(name, module)
            config.role(name)
            pattern = get_pattern_key(config.rank_pattern.keys(), name)
            config.settings_of_rank(config.rank_pattern.get(pattern, config.r))
        base = _identity_of(targets)
        _check_base(config, base)
        if config.base not in (None, base):  # of an earlier model that was created with the config
            name = next(name for name, known in self.peft_config.items() if known is config)
            self.peft_config[name] = config = copy(config)
        config.base = base

    @staticmethod
    def _create_new_module(
        lora_config: EulerLoraConfig, adapter_name: str, target: nn.Module, **kwargs: Any
    ) -> _EulerLoraLinear:
        base = target.get_base_layer() if isinstance(target, LoraLayer) else target
        transposed = isinstance(base, Conv1D)
        lora_config.fan_in_fan_out = transposed
        layer = _EulerLoraLinear(
            target, adapter_name, lora_config, is_target_conv_1d_layer=transposed, **kwargs
        )
        return layer.train(base.training)  # a model in evaluation mode stays without sampling


def _check_linear(name: str, module: nn.Module) -> None:
    if not isinstance(module, nn.Linear | Conv1D):
        raise SettingsError(f"{name}: expected nn.Linear, got {type(module).__name__}")
    weight = module.weight
    if type(weight) is not nn.Parameter or not weight.is_floating_point():
        raise SettingsError(
            f"{name}: expected floating-point weights, got {type(weight).__name__} of "
            f"{weight.dtype}; quantised layers are not supported"
        )


def _identity_of(targets: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What identifies a base model: names and shapes of the targets, and first weights.

    Weights without memory are left out.
    """
    weights = {name: module.get_parameter("weight") for name, module in targets.items()}
    text = "".join(f"{name} {tuple(weight.shape)}\n" for name, weight in weights.items())
    first = next(iter(weights.values())).detach().flatten()[:_BASE_WEIGHTS]
    values = [] if first.device.type == "meta" else first.float().tolist()
    return {"targets": hashlib.sha256(text.encode()).hexdigest(), "weights": values}


def _check_base(config: EulerLoraConfig, base: Mapping[str, Any]) -> None:
    """Weights may differ by the rounding of another floating-point type."""
    if config.base is None or not config.stored_base:
        return
    stored, values = config.base["weights"], base["weights"]
    tolerance = _ROUNDING * max(map(abs, stored), default=0)
    differ = any(abs(a - b) > tolerance for a, b in zip(stored, values, strict=False))
    if differ or config.base["targets"] != base["targets"]:
        raise SettingsError("base: expected the base model of the adapter, got another one")


def draw_coefficients(
    model: nn.Module, samples: int, seed: int | Sequence[int] = 0
) -> dict[str, Tensor]:
    """Draws for the active adapters of a model, by the name of their matrix A.

    They are (samples, r) float32 on the CPU for one seed, and (examples * samples, r) for a seed of
    each example, 0 to 2**32 - 1. The draws of an example depend on its seed and on the order of the
    layers only.

    Raises:
        SettingsError: For a model without active layers.
    """
    if samples < 1:
        raise SettingsError(f"samples: expected at least 1, got {samples}")
    return _drawn(_active(model), samples, seed)


def _drawn(
    layers: Mapping[str, Directions], samples: int, seed: int | Sequence[int]
) -> dict[str, Tensor]:
    seeds = [seed] if isinstance(seed, int) else list(seed)
    generators = [Generator().manual_seed(value) for value in seeds]
    return {
        name: torch.cat([directions.draw(samples, generator) for generator in generators])
        for name, directions in layers.items()
    }


def _active(model: nn.Module, adapters: Sequence[str] | None = None) -> dict[str, Directions]:
    """The matrices A of adapters by name, adapter by adapter; of the active ones if None."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, _EulerLoraLinear)}
    if adapters is None:
        adapters = list(
            dict.fromkeys(name for layer in layers.values() for name in layer.active_adapters)
        )
    active = {
        f"{name}.lora_A.{adapter}": cast(Directions, layer.lora_A[adapter])
        for adapter in adapters
        for name, layer in layers.items()
        if adapter in layer.lora_A
    }
    if not active:
        raise SettingsError("expected a model with an active EulerLoRA adapter, got none")
    if any(layer.merged for layer in layers.values()):
        raise SettingsError("expected adapters that are not merged; call unmerge_adapter first")
    return active


@contextmanager
def sampling(
    model: nn.Module,
    samples: int = 4,
    seed: int | Sequence[int] | None = 0,
    coefficients: Mapping[str, Tensor] | None = None,
    by_example: bool = False,
) -> Iterator[None]:
    """Samples the active adapters of a model in the block.

    A call of `model` then repeats every tensor of its batch `samples` times: row i * samples + s of
    the output is sample s of example i. With one row for each example, `model.generate` works too.
    A loss computed by the model is the mean over all rows: the paper's objective.

    A backward pass may follow after the block, also with activation checkpointing of layers; with
    `torch.utils.checkpoint` around the model, in the block. For it, a pass draws numbers from
    torch's default generator. An adapter that becomes active in the block is sampled too, as are
    those of PEFT's `adapter_names`, whose draws are those of the adapter alone.

    Args:
        model: With at least one active adapter, and none merged.
        samples: Of each example.
        seed: Of the draws of every example, or one for each example: an answer does not depend on
            the rest of the batch. None draws for the whole batch, anew in every pass, from torch's
            default generator.
        coefficients: Given ones instead, as `draw_coefficients` returns them.
        by_example: Output tensors are (examples, samples, ...) instead of (rows, ...), as
            `Trainer.predict` and `gather_for_metrics` of accelerate require, which keep as many
            entries as there are examples.

    Raises:
        SettingsError: For a model without an active or with a merged adapter; and for several
            samples in evaluation mode without `by_example` in a loop of accelerate that would drop
            rows.
    """
    layers, examples = _directions(model), 0

    def draw() -> dict[Directions, Tensor]:
        active = _active(model)
        if coefficients is not None and (wrong := active.keys() ^ coefficients.keys()):
            raise SettingsError(
                f"coefficients: expected one for each active matrix A, see {min(wrong)}"
            )
        drawn = coefficients
        if drawn is None:
            drawn = {} if seed is None else draw_coefficients(model, samples, seed)
        return {active[name]: values for name, values in drawn.items()}

    def begin(state: _SamplingState | None) -> None:
        for directions in layers:
            directions.sampling = state

    def mixed(names: Sequence[str]) -> dict[str, Any]:
        """The state's fields for an adapter of each example."""
        if coefficients is not None:
            raise SettingsError("adapter_names: expected none with given coefficients")
        drawn: dict[Directions, Tensor] = {}
        members: dict[Directions, Tensor] = {}
        for adapter in dict.fromkeys(names):
            if adapter == _BASE_MODEL:
                continue
            active = _active(model, [adapter])
            rows = [index for index, name in enumerate(names) if name == adapter]
            members |= dict.fromkeys(active.values(), torch.tensor(rows))
            if seed is not None:
                of_adapter = _drawn(active, samples, seed)
                drawn |= {active[name]: values for name, values in of_adapter.items()}
        return {"coefficients": drawn, "members": members}

    def repeat(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Repeats every tensor of the batch for each sample."""
        nonlocal examples
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        if not tensors or not tensors[0].ndim:
            raise SettingsError("sampling: expected a batch of tensors as arguments, got none")
        examples = count = len(tensors[0])
        if samples > 1 and not by_example and not model.training and _is_cut_by_accelerate(count):
            raise SettingsError(
                "sampling: expected by_example=True in Trainer.predict and other loops of "
                "accelerate, which keep one entry for each example of the last batch"
            )
        names = kwargs.get("adapter_names")
        if names is not None:
            names = [name for name in names for _ in range(samples)]
            kwargs = kwargs | {"adapter_names": names}
            begin(replace(state, rows=count * samples, **mixed(names)))
        else:
            drawn = state.coefficients
            if drawn and list(drawn) != list(_active(model).values()):
                drawn = draw()
            begin(replace(state, coefficients=drawn, rows=count * samples))

        def repeated(value: object) -> object:
            if isinstance(value, Tensor) and value.ndim and len(value) == count:
                return value.repeat_interleave(samples, dim=0)
            return value

        return cast(tuple[Any, Any], tree_map(repeated, (args, kwargs)))

    def regroup(_: nn.Module, __: object, output: object) -> object:
        """Gives the rows of an example a dimension of their own."""

        def regrouped(value: object) -> object:
            if isinstance(value, Tensor) and value.ndim and len(value) == examples * samples:
                return value.unflatten(0, (examples, samples))
            return value

        return tree_map(regrouped, output)

    state = _SamplingState(samples, draw, draw())
    handles = [model.register_forward_pre_hook(repeat, with_kwargs=True)]
    if by_example:
        handles.append(model.register_forward_hook(regroup))
    try:
        begin(state)
        yield
    finally:
        for handle in handles:
            handle.remove()
        begin(None)


def _is_cut_by_accelerate(count: int) -> bool:
    """True in a loop of accelerate with batches of `count` whose last batch is smaller.

    Its `gather_for_metrics` cuts each tensor of the last batch to the number of examples.
    """
    loader = GradientState().active_dataloader
    remainder = getattr(loader, "remainder", 0)
    if loader is None or remainder <= 0:
        return False
    return count in (remainder, loader.total_batch_size // PartialState().num_processes)


def _register() -> None:
    """Registers the method. PEFT's enumeration of types is closed, so that it is extended first."""
    name = _NAME.upper()
    if name in PeftType.__members__:
        return
    member = str.__new__(PeftType, name)
    member._name_, member._value_ = name, name
    type.__setattr__(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
    register_peft_method(
        name=_NAME, prefix=LoraModel.prefix, config_cls=EulerLoraConfig, model_cls=_EulerLoraModel
    )


_register()
