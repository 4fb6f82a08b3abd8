"""The commands `triage`, `decide`, `policy` and `monitor`, and a run of `triage`."""
