"""The triage policy: image quality, rules and dispositions."""
