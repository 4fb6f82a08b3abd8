"""The options that the clinic adds to `eulerlora serve`. Importing this module is cheap."""

import click

from eulerlora_contract.program import PATH

OPTIONS = (
    click.Option(["--policy"], type=PATH, help="Triage policy file; default: the packaged policy."),
    click.Option(
        ["--audit"], type=PATH, help="Record every decision in this file; 503 if it fails."
    ),
    click.Option(["--audit-secret"], type=PATH, help="File with the secret of the log."),
    click.Option(
        ["--audit-retention-months"],
        type=click.IntRange(0, 1200),
        default=0,
        envvar="EULERLORA_SERVE_AUDIT_RETENTION_MONTHS",
        show_envvar=True,
        help="Months for which the lines of the log are kept, stated in the header of every new "
        "file; `eulerlora audit due` lists what is older. Nothing is deleted. 0: no limit.",
    ),
)
