"""Overlays -> their documents, each rendered once by `kubectl kustomize`, and the pods in them."""

from tests.support.manifests import *
