"""Site calibration: thresholds and prediction sets from a site's own labelled pictures."""
