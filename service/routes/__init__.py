"""The routes of the HTTP interface."""
