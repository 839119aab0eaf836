"""Deployment files for a number of silos: Docker Compose and Kubernetes."""
