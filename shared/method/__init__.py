"""What the method computes with: graphs, spectra, parameters and the settings of a run. Pure; numpy and scipy alone."""
