"""Models of node graphs: bases of propagated features, closed forms on them, smoothing, calibration."""
