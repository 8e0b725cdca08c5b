"""`python -m moe_ref` is `moe-ref`."""

from moe_ref.cli import main

if __name__ == "__main__":
    main()
