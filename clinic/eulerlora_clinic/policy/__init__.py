"""The triage policy: image quality, rules, urgency and texts."""
