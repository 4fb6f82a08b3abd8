"""Faster products of bfloat16 on CPUs without instructions for them, where torch's take ten times
as long as those of float32.

    python -m eulerlora_lab.bfloat16 calibrate CHECKPOINT --precision bfloat16 ...

runs `eulerlora calibrate ...` with these products.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701 - as torch documents it

from eulerlora.precision import missing_bfloat16
from eulerlora_contract.__main__ import main

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm}


class _RoundedProducts(TorchDispatchMode):
    """Sums products of bfloat16 numbers in float32 and rounds the sums, as such instructions do.

    Results differ from theirs by the order of the sums only.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        is_in_place = func is _aten.baddbmm_.default
        if torch.is_inference_mode_enabled():  # products then come within others, such as linear
            with self:
                parts = func.decompose(*args, **options)
            if parts is not NotImplemented:
                return parts
        if not (is_in_place or func.overloadpacket in _PRODUCTS) or not _is_rounded(args[0]):
            return func(*args, **options)
        exact: Callable[..., Tensor] = _aten.baddbmm.default if is_in_place else func
        floats = [one.float() if isinstance(one, Tensor) else one for one in args]
        rounded = exact(*floats, **options).bfloat16()
        return args[0].copy_(rounded) if is_in_place else rounded


def _is_rounded(values: Tensor) -> bool:
    return values.dtype == torch.bfloat16 and values.device.type == "cpu"


def fast_products() -> AbstractContextManager[object]:
    """`_RoundedProducts` if this CPU needs it."""
    if missing_bfloat16(torch.device("cpu")) is None:
        return nullcontext()
    return _RoundedProducts()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    with fast_products():
        main()
