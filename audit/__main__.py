"""`python -m audit`: the commands of the audit alone, without what training needs."""

from audit.unseen import hide

if __name__ == "__main__":
    hide()  # before the rest is there: a probe shares the processes of the part that it looks at
    from audit.cli import main

    main()
