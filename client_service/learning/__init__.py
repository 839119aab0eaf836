"""Spectrum and model -> a trained model and its quality: losses, sampling, training, filters, evaluation."""
