"""`python -m layoutdsl` and the command `layoutdsl`."""

import sys


def main() -> int:
    """Run the command line. What interrupts it while it is loaded is an interrupt like any other."""
    try:
        from layoutdsl import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
