"""Files that describe a deployment, written for a number of silos: Docker Compose and the Kubernetes demo."""
