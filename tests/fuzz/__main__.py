"""`python -m tests.fuzz`: see `rig.py`."""

from tests.fuzz.rig import main

if __name__ == "__main__":
    main()
