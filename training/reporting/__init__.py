"""Charts, tables, reports and model cards."""
