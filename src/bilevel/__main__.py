"""`python -m bilevel` is `bilevel`."""

from bilevel_command import main

if __name__ == "__main__":
    main()
