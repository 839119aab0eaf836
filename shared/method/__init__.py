"""Graphs, spectra, parameters and the settings of a run, with numpy and scipy alone."""
