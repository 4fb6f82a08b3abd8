"""The wire contract: queries, answers and problem codes."""
