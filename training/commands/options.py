"""Options that several commands of training share."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)

data_option = click.option("--data", type=PATH, required=True, help="The data directory.")
out_option = click.option("--out", type=PATH, required=True, help="A new or empty folder.")
variant_option = click.option("--variant", metavar="NAME", help="One of the recipe's variants.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Instead of the recipe's."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Such as training.epochs=2."
)
resume_option = click.option(
    "--resume", is_flag=True, help="Continue an interrupted run to the same weights."
)
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Leave out images that cannot be used, and list them."
)
tensorboard_option = click.option(
    "--tensorboard", type=PATH, metavar="DIR", help="Write the run's curves there."
)
device_option = click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
