"""Protocol of both services: messages, bodies, signatures, and the phases of a secure round."""
