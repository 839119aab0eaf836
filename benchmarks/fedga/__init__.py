"""FedGA's tables: server optimisers with session models, over devices and over silos."""
