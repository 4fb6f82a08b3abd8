"""The wire contract: queries, response bodies and problem codes."""
