"""`python -m simulation.cli`: the same as `lpsfed`."""

from simulation.cli import main

if __name__ == "__main__":
    main()
