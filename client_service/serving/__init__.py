"""A model at rest -> recommendations; and how it is kept on the disk."""

from client_service.serving import factors as factors  # so that `snapshot` and `fold_in` know these models
