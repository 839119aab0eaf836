"""Local training: losses, sampling, trainers, and the choices that validation makes."""
