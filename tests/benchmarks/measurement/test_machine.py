"""Names of machines."""

import re

import torch

from benchmarks.measurement.machine import Machine, this_machine


def test_the_slug_of_a_machine_is_a_valid_file_name() -> None:
    cpu = Machine(cpu="AMD EPYC(tm) 9V74", threads=2, gpu=None)
    assert cpu.slug == "amd-epyc-tm-9v74-2-threads"
    assert cpu.model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"}).slug == "nvidia-h100-80gb-hbm3"
    assert re.fullmatch(r"[a-z0-9-]+", this_machine(torch.device("cpu")).slug)
