"""What both sides say to each other: messages, bodies, signatures, and the phases of a secure round."""
