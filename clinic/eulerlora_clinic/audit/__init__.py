"""The tamper-evident audit log."""
