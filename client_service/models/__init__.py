"""One file a model. A model turns a spectrum into scores; how it is trained lies in client_service/train.py."""
