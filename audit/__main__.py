"""`python -m audit`: the commands of the audit alone, without what training needs."""

from audit.cli import main

if __name__ == "__main__":
    main()
