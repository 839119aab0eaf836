"""One file a revision; `revision` and `down_revision` in it say where it stands."""
