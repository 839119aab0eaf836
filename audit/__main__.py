"""`python -m audit`: the commands of the audit alone, without what training needs."""

import sys

from audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
