"""`python -m rigs.fuzz`: see `rig.py`."""

from rigs.fuzz.rig import main

if __name__ == "__main__":
    main()
