"""`python -m audit`: the commands of the audit alone, without what training needs."""

from audit.unseen import hide_process

if __name__ == "__main__":
    hide_process()  # before the rest is there: a probe shares the processes of the part that it looks at
    from audit.cli import main

    main()
