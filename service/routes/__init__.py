"""The routes of the HTTP interface, with their response bodies."""
