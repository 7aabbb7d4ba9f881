"""`python -m bilevel` is `bilevel`."""

from bilevel.cli import main

if __name__ == "__main__":
    main()
